"""Settings of the whole suite."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

import zbench.measure.shim  # noqa: F401 - before torch, so that ranks can count allocated bytes
from tests.shared_processes import SharedProcesses

settings.register_profile("suite", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """Let collections of garbage skip what was imported: with torch, each would take 0.2 s."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the width that pytest-xdist gives its workers: what is printed depends on it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def shared_processes() -> Iterator[SharedProcesses]:
    """Trial servers and a simulator; `lend_by(monkeypatch)` gives them to what a test calls."""
    processes = SharedProcesses()
    yield processes
    processes.close()
