"""The contract between the scheduler and what runs its trials: this machine, SLURM or Ray.

An executor runs each task once and says how it ended. Everything else is the scheduler's (`scheduler`):
references, repeats, runs after a kill or a disturbance, and records.
"""

import json
import math
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import psutil

from zbench.job.jobs import RankJob, ReferenceJob
from zbench.launch.revisions import Version
from zbench.record.record import Disturbance, Failure, Outcome, Placement
from zbench.record.store import LOGS, TRACES
from zbench.spec.trial import TrialSpec

MODULES = ("zbench.measure.shim", "zbench.worker.rank")
"""What every trial server imports: the memory shim before torch, and all that every rank needs."""

_TRANSFORMERS_MODELS = ("hf:", "zbench.workloads.zoo:")
"""What `workload.model` begins with where every process would take seconds to import transformers."""

_TRANSFORMERS = (
    "transformers.modeling_utils",
    "transformers.modeling_layers",
    "transformers.masking_utils",
    "transformers.generation.utils",
)


@dataclass(frozen=True, slots=True)
class Targets:
    """What runs in the processes (`module:function`), and what a server imports before it forks them.

    torch._dynamo is as slow as torch; torch imports it in a process that makes an optimizer or a checkpoint.
    """

    rank: str = "zbench.worker.rank:run_rank"
    reference: str = "zbench.worker.rank:run_reference"
    modules: tuple[str, ...] = (*MODULES, "torch._dynamo")
    machine: str = "zbench.worker.yardstick:run_machine"


DEFAULT_TARGETS = Targets()


def targets_for(trials: Collection[TrialSpec]) -> Targets:
    """Return the targets of these trials: their models' libraries are imported once, by the server."""
    if not any(trial.workload.model.startswith(_TRANSFORMERS_MODELS) for trial in trials):
        return DEFAULT_TARGETS
    return replace(DEFAULT_TARGETS, modules=(*DEFAULT_TARGETS.modules, *_TRANSFORMERS))


def repeat_name(trial_id: str, repeat: int) -> str:
    """Return the name of a repeat's log directory."""
    return f"{trial_id}-r{repeat}"


@dataclass(frozen=True, slots=True)
class RepeatTask:
    """Train one repeat of a trial on all its ranks.

    reference: the trajectory to judge it by, if any. trace: look inside a step after it was measured.
    base_row: the reference of the row that a trial is compared with, too, if it is another.
    """

    trial: TrialSpec
    repeat: int = 0
    reference: Path | None = None
    trace: bool = False
    base_row: Path | None = None

    @property
    def name(self) -> str:
        """Name of the task's log directory."""
        return repeat_name(self.trial.trial_id, self.repeat)


@dataclass(frozen=True, slots=True)
class ReferenceTask:
    """Compute the reference trajectory of a trial in one process, and save it at `path`."""

    trial: TrialSpec
    path: Path

    @property
    def name(self) -> str:
        """Name of the task's log directory."""
        return f"reference-{self.path.stem}"


@dataclass(frozen=True, slots=True)
class MachineTask:
    """Run the machine's yardstick with the ranks, threads and turns of a trial."""

    trial: TrialSpec

    @property
    def name(self) -> str:
        """Name of the task's log directory; equal for equal devices, ranks and threads."""
        run = self.trial.run
        return f"machine-{run.device}-{run.world_size}x{run.threads_per_rank}"


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Run a whole sweep once with a version of zbench, by its command line.

    name: unlike that of the other sample of a pair. settings: of the sweep, as for `--set`.
    """

    name: str
    version: Version
    file: Path
    settings: tuple[str, ...]


TrialTask = RepeatTask | ReferenceTask | MachineTask
Task = TrialTask | SampleTask


@dataclass(frozen=True, slots=True)
class Batch:
    """Tasks that are submitted at once: one, or several that take turns on one node.

    lot: draws the order of the turns.
    """

    tasks: tuple[Task, ...]
    lot: random.Random = field(default_factory=random.Random)

    @property
    def name(self) -> str:
        """Name of its last task: in a heat the yardsticks come first."""
        return self.tasks[-1].name

    @property
    def nodes(self) -> int:
        """How many nodes it needs: a reference and a heat need one."""
        (*others, task) = self.tasks
        return task.trial.run.nodes if isinstance(task, RepeatTask) and not others else 1


OnLine = Callable[[Task, dict[str, Any]], str | None]
"""Called with each progress line of a task; a returned reason ends it (outcome `timeout`, kind `pruned`)."""


REFERENCE_PATIENCE = 4.0
"""A reference plays all ranks in turn, and then again in float64: multiple of timeout x world size."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one run of a task ended. result: the record fields that rank 0 reported, of a repeat that is ok.

    environment: path and versions of another Python environment that the ranks ran in. seconds: how long it
    ran, without what it waited for turns. peak_rss_bytes: the most memory that one of its
    processes held, where that is known.
    placement: where and when it ran, where a scheduler chose that.
    """

    outcome: Outcome
    error: Failure | None = None
    result: dict[str, Any] | None = None
    disturbance: Disturbance | None = None
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    peak_rss_bytes: int | None = None
    placement: Placement | None = None

    @property
    def was_killed(self) -> bool:
        """Whether a process was killed from outside, which says nothing about the configuration."""
        return self.error is not None and self.error.kind == "killed"

    @property
    def severity(self) -> float:
        """How much the machine was disturbed: above 1 the figures suffered; infinite for a failure."""
        if self.error is not None:
            return float("inf")
        return self.disturbance.severity if self.disturbance is not None else 0.0


@dataclass(frozen=True, slots=True)
class Vacancy:
    """What an executor has room for. batches: at once; infinite where a queue outside of it decides.

    bytes: the memory that is free where a heat would run.
    """

    batches: float = 1
    bytes: float = math.inf


class Executor(ABC):
    """Runs batches of tasks. The scheduler submits them, and waits for one end after the other.

    Each run of a task starts from a clean state: no file of an earlier run of it is read. When its end is
    returned, no process of it is left. A failure of a task is an Attempt, not an exception; UsageError means
    that this executor can never run such a trial. takes_turns: whether batches of several tasks can run.
    """

    takes_turns = False

    @abstractmethod
    def submit(self, batch: Batch, on_line: OnLine) -> int:
        """Have a batch run, and return its handle.

        on_line: sees the progress lines of a batch of one task; those of a heat where they can be seen.
        """

    @abstractmethod
    def next_ended(self) -> tuple[int, Task, Attempt]:
        """Wait until a task of any submitted batch has ended; return it with its batch's handle."""

    def withdraw(self, handle: int) -> bool:
        """Give a batch up if it has not begun; return whether it was."""
        return False

    def vacancy(self, nodes: int) -> Vacancy:
        """Return what there is room for now, of batches that need so many nodes each."""
        return Vacancy(bytes=psutil.virtual_memory().available)

    def close(self) -> None:
        """End everything that was started."""


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files of one run of one task. `fresh` is the only place that resets them between two runs.

    work: holds result, error files, progress and rendezvous. logs: stdout and stderr of every rank.
    """

    work: Path
    logs: Path

    @classmethod
    def fresh(cls, work: Path, logs: Path) -> Self:
        """Return the files of a new run, both directories empty."""
        for path in {work, logs}:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        return cls(work, logs)

    @property
    def result(self) -> Path:
        """Where rank 0 writes its result; error files lie beside it."""
        return self.work / "result.json"

    @property
    def progress(self) -> Path:
        """Where rank 0 appends a line after each step."""
        return self.work / "progress.jsonl"


@dataclass(frozen=True, slots=True)
class JobFactory:
    """Makes the worker's job of a task.

    base_dir: where relative paths of the sweep begin. values: the JSON values of a trial as the worker gets
    them.
    """

    run_dir: Path
    base_dir: Path
    targets: Targets
    values: Callable[[TrialSpec], dict[str, Any]]

    def log_name(self, task: TrialTask) -> str:
        """Return the task's log directory, relative to the run directory."""
        return f"{LOGS}/{task.name}"

    def target(self, task: TrialTask) -> str:
        """Return the function that every process of the task calls."""
        if isinstance(task, MachineTask):
            return self.targets.machine
        return self.targets.rank if isinstance(task, RepeatTask) else self.targets.reference

    def job(
        self, task: TrialTask, files: TaskFiles, *, init_method: str = "", turns: str | None = None
    ) -> RankJob | ReferenceJob:
        """Return rank 0's job of a repeat, or the job of a reference. turns: as in `RankJob`."""
        run_dir, base_dir, progress = str(self.run_dir), str(self.base_dir), str(files.progress)
        trial = self.values(task.trial)
        if isinstance(task, ReferenceTask):
            task.path.parent.mkdir(exist_ok=True)
            return ReferenceJob(trial, run_dir, base_dir, str(files.result), str(task.path), progress)
        return RankJob(
            trial=trial,
            rank=0,
            world_size=task.trial.run.world_size,
            init_method=init_method,
            run_dir=run_dir,
            base_dir=base_dir,
            result_path=str(files.result),
            progress_path=progress,
            turns=turns,
            **self._of_repeat(task),
        )

    def _of_repeat(self, task: RepeatTask | MachineTask) -> dict[str, Any]:
        """Return the fields of a rank's job that only a repeat of a trial has."""
        if isinstance(task, MachineTask):
            return {}
        return {
            "repeat": task.repeat,
            "reference_path": str(task.reference) if task.reference else None,
            "base_row_path": str(task.base_row) if task.base_row else None,
            "trace": str(self.run_dir / TRACES / task.trial.trial_id) if task.trace else None,
        }


def deadline_of(task: TrialTask) -> float:
    """Return the seconds after which a task is ended; what it waits for turns does not count."""
    run = task.trial.run
    if isinstance(task, ReferenceTask):
        return run.timeout * REFERENCE_PATIENCE * run.world_size
    return run.timeout


def collected(task: TrialTask, files: TaskFiles, attempt: Attempt, log: str) -> Attempt:
    """Return an attempt with its result; `crashed` where all processes ended well but left none."""
    if attempt.error is not None:
        return attempt
    if isinstance(task, ReferenceTask) and task.path.exists():
        return attempt
    if files.result.exists():
        return replace(attempt, result=json.loads(files.result.read_text()))
    message = "its processes ended without a result"
    return replace(attempt, outcome="crashed", error=Failure("crashed", message, log))
