"""The seconds of each step of the user's script: from its JSON lines, or from its console."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zbench.spec.workload import TIME_GROUPS, StepTimesSpec

_SECONDS_OF: Mapping[str, Callable[[float], float]] = {
    "seconds": lambda number: number,
    "milliseconds": lambda number: number / 1000,
    "per_second": lambda number: 1 / number,
}
_LONGEST_LINE = 8192
"""Characters of a line that are searched for the time of a step."""

_DEEPSPEED = re.compile(r"global_step=(?P<step>\d+).*\bCurrSamplesPerSec=(?P<rate>[0-9.eE+-]+)")
_TRAINER = re.compile(r"\{'loss': ")
_TRAINER_RATE = re.compile(r"'train_steps_per_second': '?(?P<rate>[0-9.eE+-]+)")


class ConsoleTimes:
    """Reads steps off a console, line by line.

    samples: those of one optimizer step over all ranks, for a log that says samples a second.
    """

    def __init__(self, spec: StepTimesSpec, samples: int, began: float) -> None:
        self._samples, self._last = samples, began
        self._pattern = {"deepspeed": _DEEPSPEED, "transformers": _TRAINER}.get(spec.console or "")
        if spec.regex is not None:
            self._pattern = re.compile(spec.regex)
        self._is_trainer = spec.console == "transformers"
        self.seconds: list[float] = []
        self._average: float | None = None

    def feed(self, line: str, when: float) -> float | None:
        """Return the seconds of the step that a line, printed at `when`, reports; None if it reports none."""
        line = line[:_LONGEST_LINE]
        if self._is_trainer and (average := _TRAINER_RATE.search(line)):
            self._average = _positive(average["rate"])
        match = self._pattern.search(line) if self._pattern is not None else None
        if match is None:
            return None
        groups = match.groupdict()
        if groups.get("rate") is not None:
            rate = _positive(groups["rate"])
            seconds = None if rate is None else self._samples / rate
        elif measured := next(((name, groups[name]) for name in TIME_GROUPS if name in groups), None):
            name, text = measured
            number = _positive(text)
            seconds = None if number is None else _SECONDS_OF[name](number)
        else:  # the first line ends a step that began with the program: imports and all
            seconds = when - self._last
            self._last = when
        if seconds is not None:
            self.seconds.append(seconds)
        return seconds

    def all(self) -> list[float]:
        """Return every step's seconds; if the Trainer logged no step, its own average, once."""
        return self.seconds or ([1 / self._average] if self._average else [])


def seconds_in(text: str, key: str) -> Iterator[float]:
    """Yield the seconds of each JSON line of a text; other lines are skipped."""
    for line in text.splitlines():
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        seconds = _positive(value.get(key)) if isinstance(value, dict) else None
        if seconds is not None:
            yield seconds


def _positive(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 < number < float("inf") else None
