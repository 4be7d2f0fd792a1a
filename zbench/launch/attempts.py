"""What becomes of the end of a task: it runs once more, or its Record is made."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.launch.executor import Attempt, RepeatTask, Task
from zbench.record import lines
from zbench.record.figures import impossible_figure
from zbench.record.record import SCHEMA_VERSION, Failure, Record
from zbench.record.store import StorageError

_LASTING_LOAD = 3
"""Disturbed repeats no longer run again after this many that were disturbed both times."""


@dataclass(slots=True)
class _Tries:
    """What is known of a task that runs again. measured: its first measurement, which was disturbed."""

    seconds: float = 0.0
    was_killed: bool = False
    measured: Attempt | None = None


class Retries:
    """Decides after each end of a task whether it runs once more."""

    def __init__(self, *, rerun_disturbed: bool, tell: Callable[[str], None]) -> None:
        """rerun_disturbed: False for trials that take turns with another sweep's, which would wait."""
        self._left = _LASTING_LOAD if rerun_disturbed else 0
        self._tell = tell
        self._tries: dict[str, _Tries] = {}

    def settled(self, task: Task, attempt: Attempt, *, took_turns: bool) -> Attempt | None:
        """Return how a task ended, with the seconds of all its runs; None if it is to run once more, alone.

        A process that was killed from outside is not the trial's fault. A repeat that was disturbed is
        measured again and the better measurement counts; one that took turns shared its disturbance.
        """
        tries = self._tries.setdefault(task.name, _Tries())
        tries.seconds += attempt.seconds
        if attempt.was_killed and not tries.was_killed:
            assert attempt.error is not None
            tries.was_killed = True
            self._tell(f"{attempt.error.message}; running it again")
            return None
        if tries.measured is not None:
            attempt = min(tries.measured, attempt, key=lambda one: one.severity)
            self._left = _LASTING_LOAD if attempt.severity <= 1 else self._left - 1
        elif self._is_worth_another(task, attempt) and not took_turns:
            tries.measured, tries.was_killed = attempt, False
            self._tell(f"{attempt.disturbance}; measuring it again")
            return None
        del self._tries[task.name]
        return replace(attempt, seconds=tries.seconds)

    def _is_worth_another(self, task: Task, attempt: Attempt) -> bool:
        is_disturbed = attempt.error is None and attempt.severity > 1
        return is_disturbed and self._left > 0 and isinstance(task, RepeatTask)


def record_of(run_id: str, task: RepeatTask, attempt: Attempt, reference: Path | Failure | None) -> Record:
    """Return the Record of a repeat that ended; reference: what it was to be judged by, or why that failed.

    StorageError if a disk is full: the run stops, and measures the repeat when it is resumed.
    """
    if attempt.error is not None and attempt.error.kind == "storage":
        raise StorageError(f"{attempt.error.message}; free some space and use --resume")
    record = _decoded(run_id, task, attempt)
    stalls = record.timing.stalls if record.timing is not None else []
    warnings = [*record.warnings, *stalls]
    if isinstance(reference, Failure) and reference.kind != "usage":
        warnings.append(f"not verified: the reference could not be computed: {reference.message}")
    return replace(
        record,
        warnings=warnings,
        elapsed_s=attempt.seconds,
        placement=attempt.placement,
        disturbance=attempt.disturbance if attempt.error is None else None,
    )


def _decoded(run_id: str, task: RepeatTask, attempt: Attempt) -> Record:
    """Return the Record of an attempt; `crashed` if rank 0's report is no valid record."""
    trial = task.trial
    ending = {"outcome": attempt.outcome, "error": attempt.error}
    identity = {"run_id": run_id, "trial_id": trial.trial_id, "repeat": task.repeat}
    setup: dict[str, Any] = {"axes": trial.axes, "config": trial.config(), "schema_version": SCHEMA_VERSION}
    if attempt.environment:
        setup["environment"] = attempt.environment
    try:
        record = lines.decode({**(attempt.result or ending), **identity, **setup}, "the result of a trial")
        figure = impossible_figure(record)
        problem = f"{figure}; does the model replace the clocks of Python's `time`?" if figure else ""
    except UsageError as error:
        problem = str(error)
    if not problem:
        return record
    ending = {"outcome": "crashed", "error": Failure("crashed", problem)}
    return lines.decode({**ending, **identity, **setup})
