"""The SLURM executor: each task is a job, submitted by submitit. Within an allocation see `slurm_steps`.

An optional extra (`pip install "zbench[slurm]"`). The run directory must be on a file system that all nodes
share. Tasks that are submitted before the scheduler waits are one job array, so that they use the whole
cluster.

SLURM may run a job more than once. After `scontrol requeue`, a preemption or the loss of a node it starts
again under the same number, and the task from its beginning (`slurm_node`).
"""

import itertools
import math
import pickle
import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from zbench.job.progress import ProgressTail
from zbench.launch import executor
from zbench.launch.cluster.node import joined, unpack
from zbench.launch.cluster.slurm_jobs import Cluster, SlurmOptions, is_open, is_waiting
from zbench.launch.cluster.slurm_node import all_there, last_start, serve, write
from zbench.launch.executor import (
    Attempt,
    Batch,
    Executor,
    OnLine,
    ReferenceTask,
    SampleTask,
    Targets,
    Task,
    Vacancy,
    deadline_of,
)
from zbench.record.record import Failure, Outcome
from zbench.record.store import LOGS

_POLL_SECONDS = 1.0
_SHARED_FILES_SECONDS = 15.0
_START_MINUTES = 2
"""Added to the time limit of a job: importing torch on cold nodes is not the trial's time."""

_LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"})
"""States of jobs that SLURM ended for reasons of its own, and did not requeue."""

_OUTCOMES: dict[str, Outcome] = {"OUT_OF_MEMORY": "oom", "TIMEOUT": "timeout", "DEADLINE": "timeout"}


@dataclass(slots=True)
class _Job:
    """A task that was submitted as a job. ended: when SLURM first said so. is_stopped: it is to end."""

    task: Task
    on_line: OnLine
    job: Any
    inbox: Path
    nodes: int
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    is_stopped: bool = False
    tail: ProgressTail = field(default_factory=lambda: ProgressTail(Path()))
    tail_of: Path = Path()

    @property
    def home(self) -> Path:
        """The folder of the job's last start."""
        return last_start(self.inbox, self.job.job_id)

    @property
    def ends(self) -> list[Path]:
        """What the nodes write when it has ended there."""
        return [self.home / f"end-{node}" for node in range(self.nodes)]

    def show_progress(self) -> None:
        """Show new progress lines, and have the task ended if there is reason to."""
        if self.home != self.tail_of:  # it was requeued and begins anew
            self.tail_of = self.home
            self.tail = ProgressTail(self.home / "progress")
        reason = self.tail.feed(partial(self.on_line, self.task)) if not self.is_stopped else None
        if reason is not None:
            write(self.home / "stop", reason.encode())
            self.is_stopped = True


class SlurmExecutor(Executor):
    """Runs tasks as jobs, several at once; SLURM decides when each begins."""

    def __init__(
        self, run_dir: Path, base_dir: Path, options: SlurmOptions, *, targets: Targets | None = None
    ) -> None:
        """Raise UsageError where submitit is not installed, or there is no SLURM to submit to."""
        self._run_dir = run_dir.absolute()
        self._options = options
        self._arguments = str(base_dir.absolute()), targets or executor.DEFAULT_TARGETS
        self._folder = self._run_dir / LOGS / "slurm"
        self._cluster = Cluster(options, f"zbench-{self._run_dir.name}", self._folder)
        self._handles = itertools.count()
        self._unsent: dict[int, tuple[Task, OnLine]] = {}
        self._jobs: dict[int, _Job] = {}

    def submit(self, batch: Batch, on_line: OnLine) -> int:
        """Note a task for the next array; UsageError for a trial that is no job."""
        (task,) = batch.tasks
        self._settings(task)
        handle = next(self._handles)
        self._unsent[handle] = task, on_line
        return handle

    def next_ended(self) -> tuple[int, Task, Attempt]:
        """Submit what is new, as one array for equal resources, and wait for the end of a job."""
        self._send()
        while True:
            for handle, job in self._jobs.items():
                has_ended = self._has_ended(job)
                job.show_progress()
                if has_ended:
                    del self._jobs[handle]
                    return handle, job.task, self._concluded(job)
            time.sleep(_POLL_SECONDS)

    def withdraw(self, handle: int) -> bool:
        """Cancel a job that has not begun; see `executor.Executor`."""
        if self._unsent.pop(handle, None) is not None:
            return True
        job = self._jobs[handle].job
        self._cluster.cancel([job], only_waiting=True)
        state = self._cluster.state(job)
        if is_waiting(state) or state == "CANCELLED":
            del self._jobs[handle]
            return True
        return False

    def vacancy(self, nodes: int) -> Vacancy:
        """SLURM has a queue of its own; see `executor.Executor`."""
        return Vacancy(batches=math.inf)

    def close(self) -> None:
        """Cancel what has not ended."""
        self._cluster.cancel([one.job for one in self._jobs.values()])
        self._jobs.clear()
        self._unsent.clear()

    def _settings(self, task: Task) -> dict[str, Any]:
        """Return what a task's job needs; UsageError for a trial that is no job."""
        assert not isinstance(task, SampleTask), "it runs trials"
        nodes, ranks = self._options.nodes_for(task.trial)
        parameters = dict(self._options.parameters)
        if "slurm_exclusive" not in parameters:
            parameters.setdefault("cpus_per_task", 1)
        for key in parameters.keys() & {"cpus_per_task", "slurm_gpus_per_task"}:
            parameters[key] *= ranks  # they are a rank's, and one process starts those of a node
        return {
            "timeout_min": round(deadline_of(task) / 60 + _START_MINUTES),
            "slurm_srun_args": ["--kill-on-bad-exit=1", "--cpu-bind=none"],
            **parameters,
            "nodes": 1 if isinstance(task, ReferenceTask) else nodes,
            "tasks_per_node": 1,
        }

    def _send(self) -> None:
        """Submit what was noted; tasks that need the same resources as one array."""
        groups: dict[str, list[int]] = {}
        for handle, (task, _) in self._unsent.items():
            groups.setdefault(repr(self._settings(task)), []).append(handle)
        for handles in groups.values():
            settings = self._settings(self._unsent[handles[0]][0])
            inboxes = [self._folder / f"{self._unsent[h][0].name}-{time.time_ns()}" for h in handles]
            for inbox, handle in zip(inboxes, handles, strict=True):
                inbox.mkdir(parents=True)
                write(inbox / "task", pickle.dumps((self._unsent[handle][0], settings["nodes"])))
            jobs = self._cluster.submit([partial(serve, one, *self._arguments) for one in inboxes], settings)
            for handle, job, inbox in zip(handles, jobs, inboxes, strict=True):
                self._jobs[handle] = _Job(*self._unsent.pop(handle), job, inbox, settings["nodes"])

    def _has_ended(self, begun: _Job) -> bool:
        """Whether a task has ended for good, and what it left is seen here."""
        state = self._cluster.state(begun.job)
        if is_open(state):
            return False
        begun.ended = begun.ended or time.monotonic()
        is_late = state != "COMPLETED" or time.monotonic() - begun.ended > _SHARED_FILES_SECONDS
        return is_late or all_there(begun.ends)

    def _concluded(self, begun: _Job) -> Attempt:
        """Return how a task ended: as its nodes say or, where one says nothing, as SLURM does."""
        state = self._cluster.state(begun.job)
        number = begun.job.job_id
        if state in _LOST or not all_there(begun.ends):
            outcome = _OUTCOMES.get(state, "crashed")
            kind = "killed" if state in _LOST else outcome
            failure = Failure(kind, f"the job {number} ended as {state}", f"{LOGS}/slurm")
            return Attempt(outcome, failure, seconds=time.monotonic() - begun.began)
        parts = [pickle.loads(end.read_bytes()) for end in begun.ends]
        for _, files in parts:
            unpack(files, self._run_dir)
        shutil.rmtree(begun.inbox, ignore_errors=True)
        for path in begun.job.paths.folder.glob(f"{number}_*"):  # what submitit left
            path.unlink(missing_ok=True)
        (attempt,) = joined({node: [attempt] for node, (attempt, _) in enumerate(parts)})
        return attempt
