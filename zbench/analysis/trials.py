"""One side of a comparison: its configurations, and where they were measured."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zbench.record.record import Record
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


def step_logs(trial: ConfigSummary, records: Iterable[Record] | None = None) -> tuple[float, ...]:
    """Return the natural logarithm of the median step of each finished repeat (seconds), or of `records`."""
    chosen = trial.ok if records is None else records
    return tuple(math.log(r.timing.median_step_s) for r in chosen if r.timing is not None)
