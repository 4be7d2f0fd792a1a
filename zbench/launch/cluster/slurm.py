"""The SLURM executor: each task is a job, submitted by submitit, or all run one after another in one job.

An optional extra (`pip install "zbench[slurm]"`). The run directory must be on a file system that all nodes
share. Tasks that are expected are submitted together, as a job array, so that they use the whole cluster.
With `reuse` one job keeps its nodes for all tasks: a job for each costs about 10 s.

SLURM may run a job more than once: after `scontrol requeue`, a preemption or the loss of a node it starts
again under the same number, and the task from its beginning (`slurm_node`).
"""

import pickle
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from zbench.job.progress import ProgressTail, Watch
from zbench.launch import executor
from zbench.launch.cluster.node import joined, unpack
from zbench.launch.cluster.slurm_jobs import Cluster, SlurmOptions, is_open, is_waiting
from zbench.launch.cluster.slurm_node import all_there, last_start, serve, write
from zbench.launch.executor import Attempt, Executor, ReferenceTask, Targets, Task, patience
from zbench.record.record import Failure, Outcome
from zbench.record.store import LOGS

_POLL_SECONDS = 1.0
_SHARED_FILES_SECONDS = 15.0
_START_MINUTES = 2
"""Added to the time limit of a job: importing torch on cold nodes is not the trial's time."""

_LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"})
"""States of jobs that SLURM ended for reasons of its own, and did not requeue."""

_REUSED_MINUTES = 60
"""Time limit of a job that is reused, where `--slurm timeout_min` gives no other; another one follows it."""

_OUTCOMES: dict[str, Outcome] = {"OUT_OF_MEMORY": "oom", "TIMEOUT": "timeout", "DEADLINE": "timeout"}


@dataclass(slots=True)
class _Begun:
    """A task that was given to a job: as the `number`th of its folder."""

    task: Task
    job: Any
    inbox: Path
    nodes: int
    number: int = 0
    ended: float | None = None

    @property
    def home(self) -> Path:
        """The folder of the job's last start."""
        return last_start(self.inbox, self.job.job_id)

    @property
    def ends(self) -> list[Path]:
        """What the nodes write when it has ended there."""
        return [self.home / f"end-{self.number}-{node}" for node in range(self.nodes)]


class SlurmExecutor(Executor):
    """Runs tasks as jobs: several at once; or, with `reuse`, one after another in one job."""

    def __init__(
        self, run_dir: Path, base_dir: Path, options: SlurmOptions, *, targets: Targets | None = None
    ) -> None:
        """Raise UsageError where submitit is not installed, or there is no SLURM to submit to."""
        self.runs_ahead = not options.reuse
        self._run_dir, self._options = run_dir.absolute(), options
        self._arguments = str(base_dir.absolute()), targets or executor.DEFAULT_TARGETS
        self._folder = self._run_dir / LOGS / "slurm"
        self._cluster = Cluster(options, f"zbench-{self._run_dir.name}", self._folder)
        self._ahead: dict[str, _Begun] = {}
        self._last: _Begun | None = None  # in the job that is reused

    def expect(self, tasks: Sequence[Task], watch: Watch | None = None) -> None:
        """Submit tasks; those that need the same resources as one array."""
        groups: dict[str, list[Task]] = {}
        for task in tasks if self.runs_ahead else ():
            groups.setdefault(repr(self._settings(task)), []).append(task)
        for group in groups.values():
            for begun in self._begin(group):
                self._ahead[begun.task.name] = begun

    def first(self, names: Sequence[str]) -> str:
        """Return the name of a task whose job has ended, as soon as there is one."""
        waited = [self._ahead[name] for name in names if name in self._ahead]
        if len(waited) < len(names):
            return next(name for name in names if name not in self._ahead)
        while True:
            for begun in waited:
                if self._has_ended(begun):
                    return begun.task.name
            time.sleep(_POLL_SECONDS)

    def has_begun(self, name: str) -> bool:
        """Whether a task was submitted ahead."""
        return name in self._ahead

    def withdraw(self, names: Sequence[str]) -> list[str]:
        """Cancel what has not begun; return the names of what is under way."""
        known = [self._ahead[name] for name in names if name in self._ahead]
        self._cluster.cancel([begun.job for begun in known], only_waiting=True)
        states = {begun.task.name: self._cluster.state(begun.job) for begun in known}
        kept = [name for name, state in states.items() if not is_waiting(state) and state != "CANCELLED"]
        for name in states.keys() - set(kept):
            del self._ahead[name]
        return kept

    def run(self, task: Task, watch: Watch | None = None) -> Attempt:
        """Run a task in a job; UsageError where the ranks cannot be divided evenly among the nodes."""
        begun = self._ahead.pop(task.name, None)
        if begun is None:
            (begun,) = self._begin([task])
        try:
            home, tail, has_ended = Path(), ProgressTail(Path()), False
            while not has_ended:
                has_ended = self._has_ended(begun)
                if begun.home != home:  # it was requeued and begins anew
                    home = begun.home
                    tail = ProgressTail(home / f"progress-{begun.number}")
                if watch is not None and (reason := tail.feed(watch)) is not None:
                    write(home / f"stop-{begun.number}", reason.encode())
                    watch = None
                time.sleep(0 if has_ended else _POLL_SECONDS)
        except BaseException:
            self._cluster.cancel([begun.job])
            raise
        return self._concluded(begun)

    def close(self) -> None:
        """Cancel what was expected and never run, and the job that was reused."""
        jobs = [begun.job for begun in self._ahead.values()]
        self._cluster.cancel([*jobs, *([self._last.job] if self._last else [])])
        self._ahead.clear()
        self._last = None

    def _settings(self, task: Task) -> dict[str, Any]:
        """Return what a task's job needs; UsageError for a trial that is no job."""
        nodes, ranks = self._options.nodes_for(task.trial)
        least = _REUSED_MINUTES if self._options.reuse else 1
        parameters = dict(self._options.parameters)
        if "slurm_exclusive" not in parameters:
            parameters.setdefault("cpus_per_task", 1)
        for key in parameters.keys() & {"cpus_per_task", "slurm_gpus_per_task"}:
            parameters[key] *= ranks  # they are a rank's, and one process starts those of a node
        return {
            "timeout_min": max(least, round(patience(task) / 60 + _START_MINUTES)),
            "slurm_srun_args": ["--kill-on-bad-exit=1", "--cpu-bind=none"],
            **({"slurm_additional_parameters": {"no-requeue": True}} if self._options.reuse else {}),
            **parameters,
            "nodes": 1 if isinstance(task, ReferenceTask) else nodes,
            "tasks_per_node": 1,
        }

    def _begin(self, tasks: Sequence[Task]) -> list[_Begun]:
        """Submit tasks that need the same resources, or give one to the job that is reused."""
        settings, last = self._settings(tasks[0]), self._last
        nodes: int = settings["nodes"]
        if last is not None and nodes <= last.nodes and is_open(self._cluster.state(last.job)):
            self._last = replace(last, task=tasks[0], number=last.number + 1)
            _put(self._last.inbox, last.number + 1, tasks[0], nodes)
            return [replace(self._last, nodes=nodes)]
        if self._options.reuse:
            self.close()
        inboxes = [self._folder / f"{task.name}-{time.time_ns()}" for task in tasks]
        for inbox, task in zip(inboxes, tasks, strict=True):
            _put(inbox, 0, task, nodes)
        most = None if self._options.reuse else 1
        calls = [partial(serve, inbox, *self._arguments, most) for inbox in inboxes]
        jobs = self._cluster.submit(calls, settings)
        begun = [_Begun(*parts, nodes) for parts in zip(tasks, jobs, inboxes, strict=True)]
        if self._options.reuse:
            (self._last,) = begun
        return begun

    def _has_ended(self, begun: _Begun) -> bool:
        """Whether a task has ended for good, and what it left is seen here."""
        state = self._cluster.state(begun.job)
        if self._options.reuse and all_there(begun.ends):
            return True
        if is_open(state):
            return False
        begun.ended = begun.ended or time.monotonic()
        is_late = state != "COMPLETED" or time.monotonic() - begun.ended > _SHARED_FILES_SECONDS
        return is_late or all_there(begun.ends)

    def _concluded(self, begun: _Begun) -> Attempt:
        """Return how a task ended: as its nodes say or, where one says nothing, as SLURM does."""
        state, number = self._cluster.state(begun.job), begun.job.job_id
        if state in _LOST or not all_there(begun.ends):
            outcome = _OUTCOMES.get(state, "crashed")
            kind = "killed" if state in _LOST or self._options.reuse else outcome
            return Attempt(outcome, Failure(kind, f"the job {number} ended as {state}", f"{LOGS}/slurm"))
        parts = [pickle.loads(end.read_bytes()) for end in begun.ends]
        for _, files in parts:
            unpack(files, self._run_dir)
        if not self._options.reuse:
            shutil.rmtree(begun.inbox, ignore_errors=True)
            for path in begun.job.paths.folder.glob(f"{number}_*"):  # what submitit left
                path.unlink(missing_ok=True)
        return joined([attempt for attempt, _ in parts])


def _put(inbox: Path, number: int, task: Task, nodes: int) -> None:
    """Put a task where its job looks for it."""
    inbox.mkdir(parents=True, exist_ok=True)
    write(inbox / f"task-{number}", pickle.dumps((task, nodes)))
