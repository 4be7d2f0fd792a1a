"""The events of a running sweep, and the progress lines of rank 0. `report` renders them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zbench.record.record import Record
from zbench.spec.trial import TrialSpec


@dataclass(frozen=True, slots=True)
class SweepStarted:
    """repeats: the number to run, without `finished`, which an earlier start of this run recorded.

    axes: the varied keys. is_search: `configurations` and `repeats` are the most before its finalists run
    again.
    """

    run_dir: Path
    configurations: int
    repeats: int
    finished: list[Record]
    axes: tuple[str, ...] = ()
    is_search: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceStarted:
    """A reference trajectory is computed, before the first trial that needs it."""

    trial: TrialSpec


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A repeat begins."""

    trial: TrialSpec
    repeat: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """Rank 0 finished a step; `line` is its progress line (`zbench.job.jobs.RankJob`)."""

    trial: TrialSpec
    line: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """A repeat ended and its record is on disk. seconds: without the reference. left: repeats to run."""

    trial: TrialSpec | None
    record: Record
    seconds: float
    left: int


@dataclass(frozen=True, slots=True)
class Notice:
    """A message about the run, such as why a repeat runs again."""

    text: str


Event = Notice | SweepStarted | ReferenceStarted | TrialStarted | StepDone | TrialFinished
OnEvent = Callable[[Event], None]
