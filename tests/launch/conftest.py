"""Trials of fake workers, and a runner that starts them without torch."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.shared_processes import SharedProcesses
from tests.world import local_runner
from zbench.launch.executor import Targets
from zbench.launch.trial import TrialRunner
from zbench.spec.trial import TrialSpec

HERE = Path(__file__).parent
FAKES = Targets(
    "fake_worker:run_rank", "fake_worker:run_reference", ("fake_worker",), machine="fake_worker:run_machine"
)


@pytest.fixture(scope="session", autouse=True)
def _fake_worker_importable() -> Iterator[None]:
    """Let server processes import `fake_worker` from this directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        yield


def make_trial(*, world_size: int = 2, timeout: float = 120.0, stage: int = 0, **options: Any) -> TrialSpec:
    """Return a trial whose worker does what `options` say (see `fake_worker`)."""
    return TrialSpec.model_validate(
        {
            "workload": {"model": "fake_worker:model", "options": options},
            "run": {"world_size": world_size, "timeout": timeout, "repeats": 2},
            "engine": {"zero_stage": stage},
            "axes": {"zero_stage": stage, **options},
        }
    )


def changed(trial: TrialSpec, **run: object) -> TrialSpec:
    """Return a trial with other keys of `run`."""
    return trial.model_copy(update={"run": trial.run.model_copy(update=run)})


@pytest.fixture
def trial() -> Callable[..., TrialSpec]:
    """Return `make_trial`."""
    return make_trial


@pytest.fixture
def notices() -> list[str]:
    """Return the list that `runner` writes its notices to."""
    return []


@pytest.fixture
def runner(
    tmp_path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch, shared_processes: SharedProcesses
) -> Iterator[TrialRunner]:
    """Return a runner of fake workers in an empty run directory."""
    shared_processes.lend_by(monkeypatch)
    run_dir = tmp_path / "run-1"
    run_dir.mkdir()
    with local_runner(
        run_dir, tmp_path, targets=FAKES, rerun_disturbed=False, on_notice=notices.append
    ) as running:
        yield running
