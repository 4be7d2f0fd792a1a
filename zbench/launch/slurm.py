"""The SLURM executor: each repeat is a job of one SLURM task per rank, submitted by submitit.

An optional extra (`pip install "zbench[slurm]"`). The run directory must be on a file system that all nodes
share. Tasks that are expected are submitted together, as a job array, so that they use the whole cluster.

SLURM may run a job more than once: after `scontrol requeue`, a preemption or the loss of a node it starts
again under the same number. Each start has a directory of its own, so nothing of a start that was ended, or
goes on unnoticed on a node that was cut off, is read as the result of another.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from zbench.launch import executor
from zbench.launch.executor import (
    Attempt,
    Executor,
    JobFactory,
    ReferenceTask,
    Targets,
    Task,
    TaskFiles,
    collected,
    patience,
)
from zbench.launch.outcome import outcome_of
from zbench.launch.progress import ProgressTail, Watch
from zbench.launch.slurm_jobs import LOST, START_MINUTES, Cluster, SlurmOptions, is_open, is_waiting
from zbench.record.record import Failure, Outcome
from zbench.record.store import LOGS
from zbench.spec.trial import TrialSpec
from zbench.worker.job import first_failure
from zbench.worker.slurm_task import run_job

_POLL_SECONDS = 1.0
_CANCEL_SECONDS = 60.0
_SHARED_FILES_SECONDS = 15.0
_OUTCOMES: dict[str, Outcome] = {"OUT_OF_MEMORY": "oom", "TIMEOUT": "timeout", "DEADLINE": "timeout"}


@dataclass(slots=True)
class _Begun:
    """A task that was submitted. seconds: how long it ran, as far as it was seen."""

    task: Task
    job: Any
    files: TaskFiles
    since: float | None = None
    seconds: float = 0.0


class SlurmExecutor(Executor):
    """Runs tasks as jobs: several at once."""

    runs_ahead = True

    def __init__(
        self, run_dir: Path, base_dir: Path, options: SlurmOptions, *, targets: Targets | None = None
    ) -> None:
        """Raise UsageError where submitit is not installed, or there is no SLURM to submit to."""
        values, targets = partial(_on_nodes, options), targets or executor.DEFAULT_TARGETS
        self._jobs = JobFactory(run_dir.absolute(), base_dir.absolute(), targets, values)
        self._options = options
        folder = self._jobs.run_dir / LOGS / "slurm"
        self._cluster = Cluster(options, f"zbench-{run_dir.absolute().name}", folder)
        self._ahead: dict[str, _Begun] = {}

    def expect(self, tasks: Sequence[Task], watch: Watch | None = None) -> None:
        """Submit tasks; those that need the same resources as one array."""
        groups: dict[str, list[Task]] = {}
        for task in tasks:
            if task.name not in self._ahead:
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
        """Run a task as a job; UsageError where the ranks cannot be divided evenly among the nodes."""
        begun = self._ahead.pop(task.name, None)
        if begun is None:
            (begun,) = self._begin([task])
        try:
            reason = self._wait(begun, watch)
        except BaseException:
            self._cluster.cancel([begun.job])
            raise
        log = self._jobs.log_name(task)
        if reason is not None:
            self._end(begun)
            return Attempt("timeout", Failure("pruned", reason, log), seconds=begun.seconds)
        attempt = replace(self._concluded(begun, log), seconds=begun.seconds)
        _tidy(begun, keep=attempt.error is not None)
        return attempt

    def close(self) -> None:
        """Cancel what was expected and never run."""
        self._cluster.cancel([begun.job for begun in self._ahead.values()])
        self._ahead.clear()

    def _settings(self, task: Task) -> dict[str, Any]:
        """Return what a task's job needs; UsageError for a trial that is no job."""
        shape = self._options.nodes_for(task.trial)
        if isinstance(task, ReferenceTask):
            shape = {"nodes": 1, "tasks_per_node": 1}
        minutes = max(1, round(patience(task) / 60 + START_MINUTES))
        return {"timeout_min": minutes, "slurm_srun_args": ["--kill-on-bad-exit=1"], **shape}

    def _begin(self, tasks: Sequence[Task]) -> list[_Begun]:
        """Submit tasks that need the same resources."""
        settings = self._settings(tasks[0])
        files: list[TaskFiles] = []
        calls: list[Callable[[], None]] = []
        for task in tasks:
            directory = self._jobs.run_dir / self._jobs.log_name(task)
            files.append(TaskFiles.fresh(directory, directory))
            job = self._jobs.job(task, files[-1])
            calls.append(partial(run_job, self._jobs.target(task), self._jobs.targets.modules, job))
        submitted = self._cluster.submit(calls, settings)
        return [_Begun(*parts) for parts in zip(tasks, submitted, files, strict=True)]

    def _has_ended(self, begun: _Begun) -> bool:
        """Whether a job has ended for good; keeps how long it has been seen to run."""
        state = self._cluster.state(begun.job)
        if is_waiting(state):
            begun.since, begun.seconds = None, 0.0
        else:
            begun.since = begun.since or time.monotonic()
            begun.seconds = time.monotonic() - begun.since
        return not is_open(state)

    def _wait(self, begun: _Begun, watch: Watch | None) -> str | None:
        """Wait for a job's end; return the reason that `watch` gave to end it early."""
        home, tail = Path(), ProgressTail(Path())
        while True:
            ended = self._has_ended(begun)
            now = last_start(begun.files.work, begun.job.job_id)
            if now != home:  # it was requeued and begins anew
                home, tail = now, ProgressTail(now / "progress.jsonl")
            reason = tail.feed(watch) if watch is not None else None
            if ended or reason is not None:
                return None if ended else reason
            time.sleep(_POLL_SECONDS)

    def _end(self, begun: _Begun) -> None:
        """Cancel a job and wait until it has ended: what it still computes would disturb its successor."""
        self._cluster.cancel([begun.job])
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not self._has_ended(begun) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 4)

    def _concluded(self, begun: _Begun, log: str) -> Attempt:
        """Return how a job ended: as its last start says or, where it says nothing, as SLURM does."""
        state = self._cluster.state(begun.job)
        number = f"the job {begun.job.job_id}"
        if state in LOST:
            return Attempt("crashed", Failure("killed", f"{number} was ended by SLURM: {state}", log))
        home = last_start(begun.files.work, begun.job.job_id)
        files = TaskFiles(home, begun.files.logs)
        if self._cluster.is_slurm and state == "COMPLETED":
            _await_files(begun.task, files)
        failure = first_failure(str(files.result), begun.task.trial.run.world_size)
        if failure is not None:
            return Attempt(outcome_of(failure), replace(failure, log=log))
        attempt = collected(begun.task, files, Attempt("ok"), log)
        if attempt.error is None:
            return attempt
        outcome = _OUTCOMES.get(state, "crashed")
        return replace(attempt, outcome=outcome, error=Failure(outcome, f"{number} ended as {state}", log))


def _await_files(task: Task, files: TaskFiles) -> None:
    """Wait for what a job wrote on another node to be seen here."""
    wanted = task.path if isinstance(task, ReferenceTask) else files.result
    deadline = time.monotonic() + _SHARED_FILES_SECONDS
    while not wanted.exists() and time.monotonic() < deadline:
        if first_failure(str(files.result), task.trial.run.world_size) is not None:
            return
        time.sleep(_POLL_SECONDS / 4)


def _tidy(begun: _Begun, *, keep: bool) -> None:
    """Move the output of a job's processes to the task's log directory; drop what else submitit left."""
    number, folder = begun.job.job_id, begun.job.paths.folder
    for path in folder.glob(f"{number}_*"):
        rest = path.name.removeprefix(f"{number}_")
        rank, _, kind = rest.partition("_")
        with suppress(OSError):
            if kind in ("log.out", "log.err") and rank.isdigit() and path.stat().st_size:
                path.replace(begun.files.logs / f"rank{rank}{Path(kind).suffix}")
            else:
                path.unlink()
    if not keep:
        for start in begun.files.work.glob(f"{number}-*"):
            shutil.rmtree(start, ignore_errors=True)


def _on_nodes(options: SlurmOptions, trial: TrialSpec) -> dict[str, Any]:
    """Return the trial's JSON values, with the number of nodes: its threads are shared out on each node."""
    run = trial.run.model_copy(update={"nodes": options.nodes_for(trial)["nodes"]})
    return trial.model_copy(update={"run": run}).model_dump(mode="json")


def last_start(work: Path, job_id: str) -> Path:
    """Return the directory of the job's last start; one that does not exist if it has not started."""
    starts = [path for path in work.glob(f"{job_id}-*") if path.name.rpartition("-")[2].isdigit()]
    return max(starts, key=lambda path: int(path.name.rpartition("-")[2]), default=work / f"{job_id}-0")
