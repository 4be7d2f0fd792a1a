"""Settings of the whole suite."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import zbench.measure.shim  # noqa: F401 - before torch, so that ranks can count allocated bytes
from tests.engine.ranks import begin_nursery
from tests.launch.forking import Template
from tests.launch.sharing import Servers

settings.register_profile("suite", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("suite")
gc.disable()  # until all is imported


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let collections of garbage skip what was imported: with torch, each would take 0.2 s. Fork the process
    that ranks come from, as long as nothing has been computed.
    """
    gc.freeze()
    if session.items and not session.config.option.collectonly:
        begin_nursery()
    gc.enable()


LONGEST = [
    "github/test_own_repository.py",
    "engine/compiled/test_inductor.py",
    "estimate/test_reality.py",
    "engine/test_parity.py",
    "docs/test_commands.py",
    "engine/compiled/test_parity.py",
    "worker/test_verdicts.py",
    "engine/test_odd_models.py",
    "engine/far_memory/test_far_memory.py",
    "tune/test_postgres.py",
    "engine/compiled/test_backend.py",
    "launch/test_executors.py",
    "launch/test_trial.py",
    "launch/test_kill.py",
    "engine/test_holding.py",
    "engine/compiled/test_lifetimes.py",
    "engine/test_resume.py",
    "cli/test_tune.py",
    "engine/safety/test_adding.py",
    "worker/test_result.py",
    "engine/adam/test_cuda.py",
    "engine/speculative/test_bits.py",
    "verify/test_separation.py",
    "tune/test_postgres_workers.py",
    "engine/test_soak.py",
    "worker/test_peers.py",
    "cli/test_estimate.py",
    "worker/test_state.py",
    "engine/safety/test_uses.py",
    "cli/test_streams.py",
    "launch/revisions/test_in_turns.py",
    "engine/transport/test_cross_memory.py",
    "github/test_action.py",
    "cli/test_bench.py",
    "cli/test_end_to_end.py",
    "engine/test_float16.py",
]
"""The files that take longest, longest first, as measured: begun last, one would run alone for a minute."""


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist keep the order of the files; it would begin with those of most tests."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files of `LONGEST` before all others."""
    here, turns = Path(__file__).parent, {name: turn for turn, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turns.get(item.path.relative_to(here).as_posix(), len(turns)))


@pytest.fixture(autouse=True)
def _no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the width that pytest-xdist gives its workers: what is printed depends on it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    """What Python processes are forked from, with their imports, while `template.starts()` is entered."""
    line = Template()
    yield line
    line.close()


@pytest.fixture(scope="session")
def trial_servers(template: Template) -> Iterator[Servers]:
    """Trial servers that tests share; `lend_by(monkeypatch)` gives them to the launchers of a test."""
    servers = Servers(template)
    yield servers
    servers.close()
