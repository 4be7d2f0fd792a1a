"""One side of a comparison: its configurations, where they were measured, and their times. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zbench.record.record import Heat, Record
from zbench.record.summary import ConfigSummary, summarize


@dataclass(frozen=True, slots=True)
class Source:
    """Where results came from. `facts` are the stable ones that timings depend on; empty where unknown."""

    name: str
    path: str = ""
    run_ids: tuple[str, ...] = ()
    sweep: str | None = None
    fingerprint: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    commit: str | None = None
    started: str | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class RunResults:
    """One side of a comparison: its trials in the order in which they first appear."""

    source: Source
    trials: tuple[ConfigSummary, ...]

    @classmethod
    def of(cls, source: Source, records: Iterable[Record]) -> "RunResults":
        """Gather records by configuration."""
        return cls(source, tuple(summarize(records)))

    @property
    def machines(self) -> frozenset[str]:
        """The kinds of machines where repeats ran, as far as their records say."""
        return frozenset(r.machine for trial in self.trials for r in trial.ok if r.machine is not None)


def step_logs(trial: ConfigSummary) -> tuple[float, ...]:
    """Return the natural logarithm of the mean step of each finished repeat (seconds)."""
    return tuple(math.log(r.timing.mean_step_s) for r in trial.ok if r.timing is not None)


Logs = dict[str, tuple[float, ...]]
PLAIN = "plain time"  # counts too: load that slows the yardstick may slow a trial by any share of that

LEAST_BESIDE_YARDSTICK = 3
"""Repeats beside the yardstick that a side must have for its step time to be compared."""


def turn_logs(trial: ConfigSummary) -> Logs:
    """Return the mean log of each repeat's turns as `PLAIN`, and of each part of the yardstick in its heat.

    Repeats under load count, because the yardstick was under it, too; nothing for fewer than three.
    """
    heats = _beside_yardstick(trial)
    if len(heats) < LEAST_BESIDE_YARDSTICK:
        return {}
    parts = {part: tuple(mean_log(heat.machine[part]) for heat in heats) for part in heats[0].machine}
    return parts | {PLAIN: tuple(mean_log(heat.turn_seconds) for heat in heats)}


def has_yardstick(trial: ConfigSummary) -> bool:
    """Return whether some repeat took turns with the yardstick."""
    return bool(_beside_yardstick(trial))


def _beside_yardstick(trial: ConfigSummary) -> list[Heat]:
    return [r.heat for r in trial.ok if r.heat is not None and r.heat.machine and r.heat.turn_seconds]


def yardstick_versions(trial: ConfigSummary) -> list[int]:
    """Return the versions of the machine's yardstick that took turns with a trial."""
    return sorted({r.heat.yardstick for r in trial.ok if r.heat is not None and r.heat.yardstick is not None})


def is_on_gpu(trial: ConfigSummary) -> bool:
    """Whether a trial held memory of a GPU."""
    return any(r.memory is not None and r.memory.peak_reserved_bytes is not None for r in trial.ok)


def mean_log(seconds: Sequence[float]) -> float:
    """Return the mean of the logarithms; NaN of nothing."""
    return math.fsum(map(math.log, seconds)) / len(seconds) if seconds else math.nan


def all_warnings(trials: Sequence[ConfigSummary]) -> list[str]:
    """Return how many repeats of these trials each kind of disturbance struck, in words."""
    records = [record for trial in trials for record in trial.ok]
    kinds = Counter(kind for record in records if record.disturbance for kind in record.disturbance.effects())
    return [f"{kind} in {count} of {len(records)} repeats" for kind, count in kinds.items()]
