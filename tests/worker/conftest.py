"""One warm server for all trials of this package."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.lattice import NO_CARD
from tests.making import make_trial
from tests.shared_processes import SharedProcesses
from tests.world import local_runner
from zbench.launch.trial import TrialRunner
from zbench.record.record import Record
from zbench.spec.trial import TrialSpec

ROOT = Path(__file__).parents[2]
MLP: dict[str, Any] = {
    "model": "mlp",
    "options": {"hidden": 64},
    "sequence_length": 32,
    "micro_batch_size": 4,
}

RunTrial = Callable[[TrialSpec], Record]

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NO_CARD])])


def trial(
    engine: dict[str, Any] | None = None,
    *,
    workload: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    verify: str = "full",
) -> TrialSpec:
    """Return a small trial: a 3-layer MLP on two ranks for 1 + 3 steps, unless told otherwise."""
    usual = {"world_size": 2, "device": "cpu", "warmup_steps": 1, "steps": 3, "threads_per_rank": 1}
    return make_trial(engine, workload=workload or MLP, verify=verify, **(usual | (run or {})))


@pytest.fixture(scope="package")
def runner(
    tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses
) -> Iterator[TrialRunner]:
    with pytest.MonkeyPatch.context() as patch:
        shared_processes.lend_by(patch)
        run_dir = tmp_path_factory.mktemp("run")
        with local_runner(run_dir, ROOT, rerun_disturbed=False) as started:
            yield started


@pytest.fixture
def run_trial(runner: TrialRunner) -> RunTrial:
    return runner.run
