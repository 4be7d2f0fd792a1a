"""Every executor keeps the same promises."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared_processes import SharedProcesses
from tests.world import World
from zbench.errors import UsageError
from zbench.launch import executors
from zbench.launch.cluster import slurm
from zbench.launch.cluster.slurm import SlurmExecutor
from zbench.launch.cluster.slurm_jobs import SlurmOptions
from zbench.launch.executor import Executor
from zbench.launch.process.local import LocalExecutor

from .conftest import FAKES
from .executor_suite import ExecutorSuite, ProcessSuite


class TestWorld(ExecutorSuite):
    """The executor that the scheduler's tests use."""

    @pytest.fixture
    def executor(self) -> Executor:
        return World()


class TestLocal(ProcessSuite):
    """Processes on this machine."""

    @pytest.fixture
    def executor(
        self,
        run_dir: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        shared_processes: SharedProcesses,
    ) -> Iterator[Executor]:
        shared_processes.lend_by(monkeypatch)
        made = LocalExecutor(run_dir, tmp_path, targets=FAKES)
        yield made
        made.close()


@pytest.mark.check
class TestSlurm(ProcessSuite):
    """Jobs, by submitit's executor for one machine; `test_slurm` runs some in each suite."""

    @pytest.fixture
    def executor(self, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
        pytest.importorskip("submitit")
        path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.05)
        made = SlurmExecutor(run_dir, tmp_path, SlurmOptions(cluster="local"), targets=FAKES)
        yield made
        made.close()


def test_too_many_ranks_are_refused_with_the_limit():
    most, _ = executors.max_ranks()
    with pytest.raises(
        UsageError, match=rf"run\.world_size: {most + 1} ranks cannot be started .* at most {most} "
    ):
        executors.check_world_size(most + 1)


def test_one_host_starts_64_ranks_at_most():
    assert executors.max_ranks()[0] <= 64
    with pytest.raises(UsageError, match=r"--slurm, or use `zbench estimate`"):
        executors.check_world_size(4096)
