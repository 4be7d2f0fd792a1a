"""What a sweep tells while it runs, and the progress lines of rank 0. `report` renders events."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zbench.record.record import Record
from zbench.spec.trial import TrialSpec


@dataclass(frozen=True, slots=True)
class SweepStarted:
    """repeats: how many are to run, not counting `finished`, which an earlier start of this run recorded.

    axes: the varied keys.
    """

    run_dir: Path
    configurations: int
    repeats: int
    finished: list[Record]
    axes: tuple[str, ...] = ()


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
    """Rank 0 finished a step; `line` is its progress line (`zbench.worker.job.RankJob`)."""

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
    """Something beside the trials themselves, in words: a repeat that is run again, and why."""

    text: str


Event = Notice | SweepStarted | ReferenceStarted | TrialStarted | StepDone | TrialFinished
OnEvent = Callable[[Event], None]


Watch = Callable[[dict[str, Any]], str | None]
"""Called with each progress line (see `zbench.worker.job.RankJob`); a returned reason ends the trial."""

_FIELDS: dict[str, tuple[type, ...]] = {
    "phase": (str,),
    "step": (int,),
    "steps": (int,),
    "seconds": (int, float),
}


class ProgressTail:
    """Reads what was appended since the last look; a line that is still being written waits.

    Make a new one for each run of a trial. Lines that are no progress lines are skipped: the trial's own
    code can write to the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the whole lines that came since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        return [line for line in map(_parsed, data[:end].splitlines()) if line is not None]

    def feed(self, watch: Watch) -> str | None:
        """Show new lines to `watch`; return the first reason it gives to end the trial."""
        for line in self.new_lines():
            if (reason := watch(line)) is not None:
                return reason
        return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return a progress line, None for anything else."""
    with suppress(ValueError, RecursionError):
        line = json.loads(text)
        if isinstance(line, dict) and all(type(line.get(key)) in types for key, types in _FIELDS.items()):
            return line
    return None
