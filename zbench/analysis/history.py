"""A configuration over many runs: one series a machine, its levels, and the commits where they change."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from zbench.analysis.change_points import change_points
from zbench.analysis.trials import RunResults
from zbench.record.summary import ConfigSummary


@dataclass(frozen=True, slots=True)
class Visit:
    """One run's figure for one configuration."""

    run_id: str
    started: str | None
    commit: str | None
    value: float


@dataclass(frozen=True, slots=True)
class Change:
    """A new level: it begins with visit `index`, and differs by `change` (a fraction) from the one before.

    The commit to blame lies after `after` and up to `commit`; both are None where runs did not know theirs.
    """

    index: int
    change: float
    after: str | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class Series:
    """One configuration on one machine, oldest run first."""

    trial: ConfigSummary
    facts: Mapping[str, Any]
    visits: tuple[Visit, ...]
    changes: tuple[Change, ...]

    @property
    def values(self) -> list[float]:
        """Return the figure of each visit."""
        return [visit.value for visit in self.visits]

    def levels(self) -> list[tuple[int, int, float]]:
        """Return every level as (first visit, one past its last, median)."""
        return _levels(self.values, [change.index for change in self.changes])


def history(runs: Iterable[RunResults], metric: str, *, alpha: float = 0.01) -> list[Series]:
    """Return the series of a metric; runs are taken in the order given, machines are never mixed.

    Values are medians over a run's repeats. Changes are sought in logarithms where all values are positive,
    so that they are relative.
    """
    runs = list(runs)
    ran: dict[str, set[frozenset[str]]] = {}
    for run in runs:
        ran.setdefault(_facts(run), set()).update([run.machines] if run.machines else [])
    gathered: dict[tuple[object, ...], list[tuple[ConfigSummary, RunResults, float]]] = {}
    for run in runs:
        several = len(ran[_facts(run)]) > 1  # jobs that one machine started ran on unlike ones
        place = (_facts(run), run.machines if several else None)
        for trial in run.trials:
            value = trial.number(metric)
            if value is not None and math.isfinite(value):
                gathered.setdefault((trial.trial_id, *place), []).append((trial, run, value))
    return [_series(found, alpha) for found in gathered.values()]


def _facts(run: RunResults) -> str:
    return repr(sorted(run.source.facts.items()))


def _series(found: Sequence[tuple[ConfigSummary, RunResults, float]], alpha: float) -> Series:
    visits = tuple(
        Visit(run.source.run_ids[0], run.source.started, run.source.commit, value) for _, run, value in found
    )
    trial, run, _ = found[-1]
    values = [visit.value for visit in visits]
    scaled = [math.log(value) for value in values] if min(values) > 0 else values
    starts = change_points(scaled, alpha=alpha)
    changes = []
    for (_, _, old), (start, _, new) in pairwise(_levels(values, starts)):
        moved = new / old - 1 if old else math.inf
        changes.append(Change(start, moved, visits[start - 1].commit, visits[start].commit))
    return Series(trial, run.source.facts, visits, tuple(changes))


def _levels(values: Sequence[float], starts: Sequence[int]) -> list[tuple[int, int, float]]:
    return [
        (start, stop, statistics.median(values[start:stop]))
        for start, stop in pairwise([0, *starts, len(values)])
    ]
