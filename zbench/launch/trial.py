"""One repeat of one trial: from TrialSpec to Record, for every way to fail and on every executor."""

import math
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.job.jobs import reference_key
from zbench.job.progress import Watch
from zbench.launch import turns
from zbench.launch.executor import (
    Attempt,
    Executor,
    HeatTask,
    ReferenceTask,
    RepeatTask,
    Task,
    targets_for,
)
from zbench.launch.process.local import LocalExecutor
from zbench.launch.yardsticks import Yardsticks
from zbench.record import lines
from zbench.record.record import SCHEMA_VERSION, Failure, Record
from zbench.record.store import REFERENCES, StorageError
from zbench.spec.trial import TrialSpec

_LASTING_LOAD = 3
"""Disturbed repeats no longer run again after this many that were disturbed both times."""

Repeat = tuple[TrialSpec, int]
"""A trial, and the number of a repeat of it."""

_Heat = tuple[HeatTask, Yardsticks, list[tuple[TrialSpec, Failure]]]
"""A heat, its yardsticks, and the trials that cannot run, with the bad input of each."""

OnNotice = Callable[[str], None]
"""Called with a message about the run, such as why a repeat runs again."""


class TrialRunner(AbstractContextManager["TrialRunner"]):
    """Runs trials on an executor, one by one or in heats, each with its reference. A context manager.

    Each reference trajectory is computed once, when a trial first needs it, and kept in `references/`.
    run_dir: the run directory; its name is the records' run_id. The executor is closed with the runner.
    rerun_disturbed: False for trials that take turns with another sweep's, which would have to wait.
    """

    def __init__(
        self,
        executor: Executor,
        run_dir: Path,
        *,
        rerun_disturbed: bool = True,
        on_notice: OnNotice = lambda _: None,
    ) -> None:
        self.executor, self.run_dir = executor, run_dir.absolute()
        self._tell = on_notice
        self._references: dict[str, Path | Failure] = {}
        self._reference_bytes: dict[str, int] = {}
        self._recomputed: set[str] = set()
        self._heats: dict[tuple[str, int], _Heat] = {}
        self._paid, self._told = Counter[str](), set[str]()
        self._reruns_left = _LASTING_LOAD if rerun_disturbed and turns.paired_path() is None else 0

    def run(
        self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None, trace: bool = False
    ) -> Record:
        """Run one repeat and return its Record, also of a failure; compute the reference if it is missing.

        watch: called with each progress line of rank 0; if it returns a reason, the repeat ends (outcome
        `timeout`, error kind `pruned`). trace: trace a step afterwards. If the reference finds the trial's
        input invalid, nothing runs (error kind `usage`). StorageError if the trial failed because a disk is
        full.
        """
        task = self._task(trial, repeat, trace)
        if isinstance(task, Failure):
            return self._record(trial, repeat, Attempt("crashed", task))
        began = time.monotonic()
        attempt = self._surviving(task, watch)
        if attempt.error is None and self._reruns_left > 0 and attempt.severity > 1:
            self._tell(f"{'; '.join(attempt.warnings)}; measuring it again")
            attempt = min(attempt, self._surviving(task, watch), key=lambda one: one.severity)
            self._reruns_left = _LASTING_LOAD if attempt.severity <= 1 else self._reruns_left - 1
        if self._forgot_damaged_reference(trial, attempt):
            return self.run(trial, repeat=repeat, watch=watch, trace=trace)
        seconds = time.monotonic() - began if attempt.seconds is None else attempt.seconds
        return self._finished(task, replace(attempt, seconds=seconds))

    def run_heat(
        self,
        trials: Sequence[TrialSpec],
        repeat: int,
        watch: Callable[[TrialSpec], Watch],
        lot: random.Random,
        *,
        trace: bool = False,
        alone: bool = True,
    ) -> Iterator[tuple[TrialSpec, Record]]:
        """Run one repeat of each of several trials, in turns; yield each with its Record as it ends.

        A repeat that was killed from outside runs once more, alone; a disturbed one does not. alone: whether
        there is room for the yardstick of this name. The rest is as in `run`.
        """
        begun = self._heats.pop((trials[0].trial_id, repeat), None)
        heat, yardsticks, unable = begun or self._heat(trials, repeat, lot, trace, alone)
        for trial, failure in unable:
            yield trial, self._record(trial, repeat, Attempt("crashed", failure))
        name = secrets.token_hex(4)

        def watch_of(task: Task) -> Watch:
            return watch(task.trial) if task in heat.repeats else lambda _: None

        for task, attempt in self.executor.run_heat(heat, watch_of) if heat.repeats else ():
            if yardsticks.take(task, attempt):
                if attempt.error is not None:
                    self._tell_once(f"a yardstick could not run: {attempt.error.message}", about=task.name)
                continue
            assert isinstance(task, RepeatTask)
            if attempt.was_killed:
                attempt = self._again(task, attempt, watch(task.trial))
            if self._forgot_damaged_reference(task.trial, attempt):
                yield task.trial, self.run(task.trial, repeat=repeat, watch=watch(task.trial), trace=trace)
            else:
                yield task.trial, yardsticks.applied(self._finished(task, attempt), task.trial, name)

    def _finished(self, task: RepeatTask, attempt: Attempt) -> Record:
        """Return the Record of a repeat that ran; StorageError where a disk is full."""
        if attempt.error is not None and attempt.error.kind == "storage":
            raise StorageError(f"{attempt.error.message}; free some space and use --resume")
        record = self._record(task.trial, task.repeat, attempt)
        stalls = record.timing.stalls if record.timing is not None else []
        warnings = [*record.warnings, *stalls, *attempt.warnings]
        if isinstance(reference := self.reference(task.trial), Failure):
            warnings.append(f"not verified: the reference could not be computed: {reference.message}")
        return replace(record, warnings=warnings, elapsed_s=attempt.seconds, placement=attempt.placement)

    @property
    def takes_turns(self) -> bool:
        """Whether several repeats can take turns with one another; not if they do so with another sweep."""
        return self.executor.takes_turns and turns.paired_path() is None

    def expect_heat(
        self, trials: Sequence[TrialSpec], repeat: int, lot: random.Random, *, trace: bool = False
    ) -> None:
        """Submit a heat that `run_heat` will be called for."""
        heat, *_ = self._heats[trials[0].trial_id, repeat] = self._heat(trials, repeat, lot, trace, True)
        if heat.repeats:
            self.executor.expect_heat(heat)

    def _heat(
        self, trials: Sequence[TrialSpec], repeat: int, lot: random.Random, trace: bool, alone: bool
    ) -> _Heat:
        tasks = [(trial, self._task(trial, repeat, trace)) for trial in trials]
        able = tuple(task for _, task in tasks if isinstance(task, RepeatTask))
        yardsticks = Yardsticks([task.trial for task in able], repeat, self._paid, has_room=alone)
        if yardsticks.too_few:
            self._tell_once(
                "compute alone does not take turns in every heat: one repeat of it for three that share it",
                about="price",
            )
        unable = [(trial, task) for trial, task in tasks if isinstance(task, Failure)]
        return HeatTask(able, tuple(yardsticks.tasks), lot), yardsticks, unable

    def expect_references(self, trials: Sequence[TrialSpec]) -> None:
        """Submit the computation of each missing reference that these trials need."""
        missing = {reference_key(t): self._reference_task(t) for t in trials if not self.has_reference(t)}
        self.executor.expect([task for task in missing.values() if not task.path.exists()])

    def expect(self, repeats: Iterable[Repeat], *, trace: bool = False, watch: Watch | None = None) -> None:
        """Submit repeats that `run` will be called for, without those whose reference found invalid input."""
        tasks = [self._task(trial, repeat, trace) for trial, repeat in repeats]
        self.executor.expect([task for task in tasks if isinstance(task, RepeatTask)], watch)

    def reference(self, trial: TrialSpec, watch: Watch | None = None) -> Path | Failure | None:
        """Return the trial's trajectory, computed if missing, or why it failed; None if nothing is verified.

        watch: called with the progress lines of the computation. StorageError if the trajectory could not be
        saved: the sweep stops, and verifies when it is resumed.
        """
        if not is_verified(trial):
            return None
        key = reference_key(trial)
        if key not in self._references:
            task = self._reference_task(trial)
            attempt = None if task.path.exists() else self._surviving(task, watch)
            error = attempt and attempt.error
            if error and error.kind == "storage":
                raise StorageError(f"no reference could be saved: {error.message}; use --resume")
            self._references[key] = error or task.path
            if attempt is not None and attempt.peak_rss_bytes is not None:
                self._reference_bytes[key] = attempt.peak_rss_bytes
        return self._references[key]

    def most_bytes(self, trial: TrialSpec) -> float:
        """Return an upper bound of the memory of one rank: that of its reference.

        The reference plays all ranks with whole state, in float32 and float64. Infinite if it is not known.
        """
        return self._reference_bytes.get(reference_key(trial), math.inf) if is_verified(trial) else math.inf

    def has_reference(self, trial: TrialSpec) -> bool:
        """Whether `run` would start at once, without computing a reference first."""
        return not is_verified(trial) or reference_key(trial) in self._references

    def close(self) -> None:
        """Close the executor, which ends all that it started."""
        self.executor.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reference_task(self, trial: TrialSpec) -> ReferenceTask:
        return ReferenceTask(trial, self.run_dir / REFERENCES / f"{reference_key(trial)}.safetensors")

    def _forgot_damaged_reference(self, trial: TrialSpec, attempt: Attempt) -> bool:
        """Remove a damaged reference, so that it is computed again; False if that was done before."""
        key = reference_key(trial)
        if attempt.error is None or attempt.error.kind != "reference" or key in self._recomputed:
            return False
        self._tell(f"{attempt.error.message}; computing it again")
        self._recomputed.add(key)
        del self._references[key]
        self._reference_task(trial).path.unlink(missing_ok=True)
        return True

    def _tell_once(self, text: str, about: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self._tell(text)

    def _task(self, trial: TrialSpec, repeat: int, trace: bool) -> RepeatTask | Failure:
        """Return the task of a repeat, or the failure if its reference found invalid input."""
        reference = self.reference(trial)
        if isinstance(reference, Failure) and reference.kind == "usage":
            return reference
        return RepeatTask(trial, repeat, reference if isinstance(reference, Path) else None, trace)

    def _surviving(self, task: Task, watch: Watch | None) -> Attempt:
        """Run a task, and once more if a process was killed from outside, which is not the trial's fault."""
        attempt = self.executor.run(task, watch)
        return self._again(task, attempt, watch) if attempt.was_killed else attempt

    def _again(self, task: Task, killed: Attempt, watch: Watch | None) -> Attempt:
        assert killed.error is not None
        self._tell(f"{killed.error.message}; running it again")
        return self.executor.run(task, watch)

    def _record(self, trial: TrialSpec, repeat: int, attempt: Attempt) -> Record:
        """Return the Record of an attempt; `crashed` if rank 0's report is not a valid record."""
        known: dict[str, Any] = {"outcome": attempt.outcome, "error": attempt.error}
        identity = {"run_id": self.run_dir.name, "trial_id": trial.trial_id, "repeat": repeat}
        what = {"axes": trial.axes, "config": trial.config(), "schema_version": SCHEMA_VERSION}
        if attempt.environment:
            what["environment"] = attempt.environment
        try:
            return lines.decode({**(attempt.result or known), **identity, **what}, "the result of a trial")
        except UsageError as error:
            known = {"outcome": "crashed", "error": Failure("crashed", str(error))}
            return lines.decode({**known, **identity, **what})


def is_verified(trial: TrialSpec) -> bool:
    """Whether a trial is verified: a command that saves no checkpoint is not."""
    saves_nothing = trial.workload.command is not None and trial.workload.checkpoint is None
    return trial.verify.mode != "off" and not saves_nothing


def run_trial(trial: TrialSpec, *, run_dir: Path, base_dir: Path) -> Record:
    """Run one repeat of one trial on this machine and return its Record."""
    executor = LocalExecutor(run_dir, base_dir, targets=targets_for([trial]))
    with TrialRunner(executor, run_dir) as runner:
        return runner.run(trial)
