"""The references of a run: each trajectory is computed once, when a trial first needs it."""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from zbench.job.jobs import reference_key
from zbench.launch.executor import Attempt, ReferenceTask
from zbench.record.record import Failure
from zbench.record.store import REFERENCES, StorageError
from zbench.spec.trial import TrialSpec


class References:
    """What is known of each reference: the file of its trajectory in `references/`, or why there is none."""

    def __init__(self, run_dir: Path, tell: Callable[[str], None]) -> None:
        self._place = run_dir / REFERENCES
        self._tell = tell
        self._known: dict[str, Path | Failure] = {}
        self._bytes: dict[str, int] = {}
        self._wanted: set[str] = set()
        self._damaged = set[str]()
        self._repeated = set[str]()

    def of(self, trial: TrialSpec) -> Path | Failure | None:
        """Return a trial's trajectory or why it failed; None if it is not known, or nothing is verified."""
        return self._known.get(reference_key(trial)) if is_verified(trial) else None

    def of_row(self, trial: TrialSpec) -> Path | None:
        """Return the reference of the base row that a trial is compared with, if there is one."""
        row = trial.compared_row() if is_verified(trial) else None
        found = None if row is None else self._known.get(reference_key(row))
        return found if isinstance(found, Path) else None

    def missing(self, trials: Iterable[TrialSpec]) -> list[ReferenceTask]:
        """Return what computes the references of these trials; not those that were asked for before."""
        tasks = []
        for trial in sought(trials):
            key = reference_key(trial)
            if key in self._known or key in self._wanted:
                continue
            task = ReferenceTask(trial, self._place / f"{key}.safetensors")
            if task.path.exists():
                self._known[key] = task.path
            else:
                self._wanted.add(key)
                tasks.append(task)
        return tasks

    def are_known(self, trials: Iterable[TrialSpec]) -> bool:
        """Whether these trials can run now: with their references, or without where these failed."""
        return all(reference_key(trial) in self._known for trial in sought(trials))

    def take(self, task: ReferenceTask, attempt: Attempt) -> None:
        """Keep how the computation of a reference ended.

        StorageError if it could not be saved: the run stops, and verifies when it is resumed.
        """
        key = reference_key(task.trial)
        error = attempt.error
        if error is not None and error.kind == "storage":
            remedy = "free space or make the directory writable, then continue with --resume"
            raise StorageError(f"no reference could be saved: {error.message}; {remedy}")
        self._wanted.discard(key)
        self._known[key] = error or task.path
        if attempt.peak_rss_bytes is not None:
            self._bytes[key] = attempt.peak_rss_bytes

    def most_bytes(self, trial: TrialSpec) -> float:
        """Return an upper bound of the memory of one rank: that of its reference.

        The reference plays all ranks with whole state, in float32 and float64. Infinite if it is not known.
        """
        return self._bytes.get(reference_key(trial), math.inf) if is_verified(trial) else math.inf

    def forgot_damaged(self, trial: TrialSpec, attempt: Attempt) -> bool:
        """Say whether a trial found its reference damaged, for the first time: it is to run again.

        The reference is removed and computed again once, for all trials that have it.
        """
        key, error = reference_key(trial), attempt.error
        if error is None or error.kind != "reference" or trial.trial_id in self._repeated:
            return False
        self._repeated.add(trial.trial_id)
        if key not in self._damaged:
            self._damaged.add(key)
            self._tell(f"{error.message}; computing it again")
            reference = self._known.pop(key, None)
            if isinstance(reference, Path):
                reference.unlink(missing_ok=True)
        return True


def sought(trials: Iterable[TrialSpec]) -> Iterator[TrialSpec]:
    """Yield the trials whose references these trials need: their own, and the base row's."""
    for trial in filter(is_verified, trials):
        yield trial
        row = trial.compared_row()
        if row is not None:
            yield row


def references_needed(trials: Iterable[TrialSpec]) -> int:
    """Return how many references these trials need."""
    return len({reference_key(trial) for trial in sought(trials)})


def is_verified(trial: TrialSpec) -> bool:
    """Whether a trial is verified: a command that saves no checkpoint is not."""
    saves_nothing = trial.workload.command is not None and trial.workload.checkpoint is None
    return trial.verify.mode != "off" and not saves_nothing
