"""Every executor keeps the same promises."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared_processes import SharedProcesses
from zbench.launch import slurm
from zbench.launch.executor import Executor
from zbench.launch.local import LocalExecutor
from zbench.launch.slurm import SlurmExecutor
from zbench.launch.slurm_jobs import SlurmOptions

from .conftest import FAKES
from .executor_suite import ExecutorSuite
from .mock_executor import MockExecutor


class TestMock(ExecutorSuite):
    """The executor that the scheduler's tests use."""

    @pytest.fixture
    def executor(self) -> Executor:
        return MockExecutor()


class TestLocal(ExecutorSuite):
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


class TestSlurm(ExecutorSuite):
    """Jobs, by submitit's executor for one machine."""

    @pytest.fixture
    def executor(self, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
        pytest.importorskip("submitit")
        path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.05)
        return SlurmExecutor(run_dir, tmp_path, SlurmOptions(cluster="local"), targets=FAKES)
