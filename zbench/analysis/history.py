"""A configuration over many runs: one series a machine, its levels, and the commits where they change. Pure.

Changes of level are found by E-divisive, with significance by permutation: Matteson and James, "A
nonparametric approach for multiple change point analysis of multivariate data", Journal of the American
Statistical Association 109 (2014), https://arxiv.org/abs/1306.4933. The energy distance between what comes
before and after a point needs no model of the noise. A candidate counts only if few permutations of the same
values reach its distance.

Why no library: `ruptures` (1.1.10) wants a penalty or the number of changes, and gives no error rate. Its
PELT with the usual BIC penalty found a change in 19 % of short normal series that had none, and in more of
those with long tails. This function found one in at most 1.3 %. Apache Otava implements this very method, but
pins the versions of what it depends on.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zbench.analysis.settings import STORED_THRESHOLDS
from zbench.analysis.trials import Source, turn_logs, yardstick_versions
from zbench.record.summary import ConfigSummary
from zbench.spec.metrics import METRICS, STEP_TIMES, TIMED, Unit, metric_named

Floats = NDArray[np.float64]

LEAST_SEGMENT = 3
"""Runs on either side of a change, at least: one slow run is noise, not a level."""

_PERMUTATIONS = 999
_NEIGHBOURS = 3  # on either side, of a running median
_MOST_DEVIATIONS = 2 * 1.4826  # in units of the median deviation of a normal distribution
_WINDOW = 200
_THRESHOLD = 0.05


@dataclass(frozen=True, slots=True)
class KeptTrial:
    """A configuration of one run without its records. result: verdict or outcome.

    figures: metric -> its value, then the least and the largest of its repeats. over_machine, yardsticks: as
    `machine_log` returns them.
    """

    trial_id: str
    axes: dict[str, Any]
    result: str
    figures: dict[str, tuple[float, float, float]]
    over_machine: float | None = None
    yardsticks: tuple[int, ...] = ()

    def number(self, name: str) -> float | None:
        """Return a metric's value."""
        return self.figures[name][0] if name in self.figures else None

    def values(self, name: str) -> list[float]:
        """Return a metric's least and largest value over the repeats."""
        return list(self.figures.get(name, ())[1:])


Trial = ConfigSummary | KeptTrial


class Run(Protocol):
    """The data of a run that a history needs: RunResults, or the part of it that a site stores."""

    @property
    def source(self) -> Source: ...
    @property
    def trials(self) -> Sequence[Trial]: ...
    @property
    def machines(self) -> frozenset[str]: ...


def change_points(
    values: Sequence[float], *, alpha: float = 0.01, seed: int = 0, remembers: bool = False
) -> list[int]:
    """Return the indices at which a new level begins, ascending.

    Segments are split at their most distant point as long as that is significant at `alpha`, by a permutation
    test. Its 999 draws are from `seed`, so the same series always gives the same answer. remembers: whether a
    value may resemble the one before. Then a share of that is taken from it first, because a permutation test
    wants independent values: their correlation within levels and two standard errors, 0.6 at most.

    With that, outliers are drawn nearer first (`winsorized`). A series of more than 200 values is searched
    200 at a time, every window overlapping half of the one before. So the time grows with the length, not
    with its square; `alpha` holds for each window.
    """
    series = winsorized(values) if remembers else np.asarray(values, dtype=np.float64)
    starts: list[int] = []
    half = _WINDOW // 2
    for window in range(0, max(1, len(series) - half), half):
        part = series[window : window + _WINDOW]
        first = max(starts[-1] + LEAST_SEGMENT if starts else 0, window + half // 2 if window else 0)
        last = window + (len(part) if window + _WINDOW >= len(series) else _WINDOW - half // 2)
        splits = _splits(part, alpha, np.random.default_rng(seed), remembers)
        starts += [window + split for split in splits if first <= window + split < last]
    return starts


def winsorized(values: Sequence[float]) -> Floats:
    """Return the values, those far from the medians of their neighbours drawn nearer.

    A run beside other work is no level, but hides one: the distance of a split is a mean. Deviations from the
    running median of 7 runs are cut at 2 of their own standard deviations, estimated from their median.
    """
    series = np.asarray(values, dtype=np.float64)
    reach = range(len(series))
    medians = np.array([np.median(series[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1]) for i in reach])
    most = _MOST_DEVIATIONS * float(np.median(np.abs(series - medians))) if len(series) else 0.0
    return np.asarray(medians + np.clip(series - medians, -most, most)) if most else series


def _splits(series: Floats, alpha: float, rng: np.random.Generator, remembers: bool) -> list[int]:
    """Return where a window's levels begin, ascending."""
    starts: list[int] = []
    pending = [(0, len(series))]
    while pending:
        start, stop = pending.pop()
        split = _significant_split(series[start:stop], alpha, rng, remembers)
        if split is not None:
            starts.append(start + split)
            pending += [(start, start + split), (start + split, stop)]
    return sorted(starts)


def _significant_split(
    segment: Floats, alpha: float, rng: np.random.Generator, remembers: bool
) -> int | None:
    """Return where a segment splits, or None where it does not or is too short to tell."""
    n = len(segment) - remembers
    if n < 2 * LEAST_SEGMENT or 2 / math.comb(n, n // 2) > alpha:
        return None
    distances = np.abs(segment[:, None] - segment[None, :])
    split, observed = most_distant_split(distances)
    if remembers:
        tested = segment[1:] - _memory(segment, split) * segment[:-1]
        distances = np.abs(tested[:, None] - tested[None, :])
        _, observed = most_distant_split(distances)
    reached = 1
    for _ in range(_PERMUTATIONS):
        order = rng.permutation(n)
        reached += most_distant_split(distances[np.ix_(order, order)])[1] >= observed * (1 - 1e-12)
        if reached > alpha * (_PERMUTATIONS + 1):
            return None
    return split


def _memory(segment: Floats, split: int) -> float:
    """Return which share of the value before may be in each value: its upper bound, 0.6 at most.

    The correlation is that of the deviations from two levels. Their means make it too small by about (2 + 4
    times itself) / n; its standard error is 1 / sqrt(n) at most.
    """
    deviations = np.concatenate([part - part.mean() for part in (segment[:split], segment[split:])])
    squares = float(deviations @ deviations)
    n = len(segment)
    correlation = float(deviations[1:] @ deviations[:-1]) / squares if squares else 0.0
    return min(max(0.0, correlation + (2 + 4 * max(correlation, 0.0)) / n + 2 / math.sqrt(n)), 0.6)


def most_distant_split(distances: Floats) -> tuple[int, float]:
    """Return the split of largest scaled energy distance between its two sides, and that distance."""
    n = len(distances)
    block = np.zeros((n + 1, n + 1))
    block[1:, 1:] = distances.cumsum(axis=0).cumsum(axis=1)
    left = np.arange(LEAST_SEGMENT, n - LEAST_SEGMENT + 1)
    right = n - left
    before = block[left, left]
    after = block[n, n] - 2 * block[left, n] + before
    between = block[left, n] - before
    energy = 2 * between / (left * right) - before / left**2 - after / right**2
    scaled = energy * left * right / n
    best = int(scaled.argmax())
    return int(left[best]), float(scaled[best])


@dataclass(frozen=True, slots=True)
class Visit:
    """One run's figure for one configuration; low, high: the least and the largest of its repeats."""

    run_id: str
    started: str | None
    commit: str | None
    value: float
    low: float
    high: float


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
    """One configuration of one sweep on one machine and git branch, oldest run first.

    key: the same for all metrics of this configuration, sweep, machine and branch, and for nothing else.
    """

    trial: KeptTrial
    facts: Mapping[str, Any]
    visits: tuple[Visit, ...]
    changes: tuple[Change, ...]
    sweep: str | None = None
    branch: str | None = None
    key: str = ""

    @property
    def values(self) -> list[float]:
        """Return the figure of each visit."""
        return [visit.value for visit in self.visits]

    def levels(self) -> list[tuple[int, int, float]]:
        """Return every level as (first visit, one past its last, median)."""
        return _levels(self.values, [change.index for change in self.changes])

    def is_worse(self, change: Change, metric: str) -> bool:
        """Whether a change of this metric is a regression: worse by more than `compare` accepts, or 5 %."""
        sign = -1 if METRICS[metric].better == "maximize" else 1
        compared = "step_time" if metric in STEP_TIMES else metric
        return sign * change.change > STORED_THRESHOLDS.get(compared, _THRESHOLD)


def history(runs: Iterable[Run], metric: str, *, alpha: float = 0.01) -> list[Series]:
    """Return the series of a metric; runs are taken in the order given, machines and branches never mixed.

    Values are medians over a run's repeats. If all values are positive, changes are searched in logarithms,
    so that they are relative; if all runs have the machine's yardstick, in times and rates over it.
    """
    ran: dict[str, set[frozenset[str]]] = {}
    figures: list[tuple[KeptTrial, Source, frozenset[str]]] = []
    for run in runs:  # one at a time: its records are not kept
        ran.setdefault(_facts(run.source), set()).update([run.machines] if run.machines else [])
        trials = (_kept(trial, metric) for trial in run.trials)
        figures += ((trial, run.source, run.machines) for trial in trials if trial is not None)
    gathered: dict[str, list[tuple[KeptTrial, Source]]] = {}
    for trial, source, machines in figures:
        several = len(ran[_facts(source)]) > 1  # jobs that one machine started ran on unlike ones
        kind = sorted(machines) if several else None
        key = repr((trial.trial_id, source.sweep, source.branch, _facts(source), kind))
        gathered.setdefault(key, []).append((trial, source))
    return [_series(key, metric, visited, alpha) for key, visited in gathered.items()]


def _kept(trial: Trial, metric: str) -> KeptTrial | None:
    if (value := trial.number(metric)) is None or not math.isfinite(value):
        return None
    repeats = [value, *trial.values(metric)]
    figures = {metric: (value, min(repeats), max(repeats))}
    return KeptTrial(trial.trial_id, trial.axes, "", figures, *machine_log(trial))


def _facts(source: Source) -> str:
    return repr(sorted(source.facts.items()))


def _series(key: str, metric: str, figures: Sequence[tuple[KeptTrial, Source]], alpha: float) -> Series:
    visits = [
        Visit(source.run_ids[0], source.started, source.commit, *trial.figures[metric])
        for trial, source in figures
    ]
    trial, source = figures[-1]
    unit = metric_named(metric).unit
    values = [visit.value for visit in visits]
    is_timed = unit in TIMED
    if is_timed and metric not in STEP_TIMES[1:] and metric_named(metric).compute is None:
        values = _over_machine([trial for trial, _ in figures], unit) or values
    scaled = [math.log(value) for value in values] if min(values) > 0 else values
    starts = change_points(scaled, alpha=alpha, remembers=is_timed)
    changes = []
    for (_, _, old), (start, _, new) in pairwise(_levels(values, starts)):
        moved = new / old - 1 if old else math.inf
        changes.append(Change(start, moved, visits[start - 1].commit, visits[start].commit))
    return Series(trial, source.facts, tuple(visits), tuple(changes), source.sweep, source.branch, key)


def machine_log(trial: Trial) -> tuple[float | None, tuple[int, ...]]:
    """Return the log of a trial's time over the machine's yardstick, if known, and that one's versions."""
    if isinstance(trial, KeptTrial):
        return trial.over_machine, trial.yardsticks
    *parts, times = turn_logs(trial).values() or [()]
    repeats = [time - statistics.fmean(paces) for time, *paces in zip(times, *parts, strict=True)]
    return statistics.median(repeats) if repeats else None, tuple(yardstick_versions(trial))


def _over_machine(trials: Sequence[KeptTrial], unit: Unit) -> list[float] | None:
    """Return the time, or the rate, of each trial over the machine's yardstick; None where one lacks it."""
    logs = [trial.over_machine for trial in trials if trial.over_machine is not None]
    if len(logs) < len(trials) or len({version for trial in trials for version in trial.yardsticks}) > 1:
        return None
    return [math.exp(log if unit == "s" else -log) for log in logs]


def _levels(values: Sequence[float], starts: Sequence[int]) -> list[tuple[int, int, float]]:
    return [
        (start, stop, statistics.median(values[start:stop]))
        for start, stop in pairwise([0, *starts, len(values)])
    ]
