"""The table of log times of a sweep: configuration x heat x turn, built once from records. Pure.

Rankings, relative tables, `of_compute` and the effects of axes are contrasts of its fit `value = row +
heat`. All values are logarithms, less is better, so a contrast is the logarithm of a ratio.

A repeat is one look at a process, and its turns say how noisy the look is. The variance between turns is
shrunk over all rows (`zbench.analysis.variances`). What differs between processes multiplies it by one
factor, the dispersion of the whole table (quasi-likelihood; McCullagh and Nelder, "Generalized Linear
Models", 1989, chapter 9). The factor has a prior, because repeats are few. Without turns the variance is that
of each row's residuals, shrunk alike.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtr, stdtr, stdtrit

from zbench.analysis.variances import Floats, shrunk
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary
from zbench.spec.engine import ALONE_KEYS
from zbench.spec.metrics import STEP_TIMES, TIMED, Goal, metric_named

Indices = NDArray[np.intp]
Turns = tuple[Floats, ...]
"""The logarithms of the steps of each turn."""

TAIL = 0.025  # of a 95 % interval
EXACT = 1e-9
"""Exact figures, such as bytes, have no noise; logarithms of them that are closer than this are equal."""

_NOTHING = 1e-99  # stands for a figure of 0 on the log scale
_DISPERSION, _DISPERSION_DEGREES = 1.6, 4.0
"""The prior: what processes add to the noise of turns in the sweeps under results/benchmarks, and its
weight.
"""

_UNUSUAL = 0.9  # of F: a table whose dispersion exceeds the prior by so much has its own alone
_DIFFERENT = 0.95  # of F: rows that a summary shortens by so different shares are not compared by it


@dataclass(frozen=True, slots=True)
class Cell:
    """A repeat of a row, the round of its sweep, and its block, within which rows are compared: a heat or a
    round.
    """

    row: str
    round: str
    block: str
    turns: Turns


@dataclass(frozen=True, slots=True)
class Contrast:
    """The logarithm of a ratio, its standard error, and that error's degrees of freedom: 0 if it is
    unknown.
    """

    value: float
    error: float
    degrees: float

    def interval(self, tail: float = TAIL) -> tuple[float, float]:
        """Return the bounds that the true value passes with probability `tail` on each side."""
        half = self.error * -float(stdtrit(self.degrees, tail)) if self.degrees > 0 else math.inf
        return self.value - half, self.value + half

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value of Student's t for a true value of `bound` or less."""
        if self.degrees <= 0:
            return 1.0
        return float(stdtr(self.degrees, (bound - self.value) / self.error)) if self.error else 0.5

    def reach(self, level: float, power: float) -> float:
        """Return how far beyond a bound a change is seen at `level` with this power; NaN if unknown."""
        return reach(self.degrees, level, power) * self.error if self.degrees > 0 else math.nan

    def __neg__(self) -> "Contrast":
        """Return the logarithm of the inverse ratio."""
        return replace(self, value=-self.value)


def reach(degrees: float, level: float, power: float) -> float:
    """Return how many standard errors beyond a bound a change is seen at `level` with this power."""
    return float(stdtrit(degrees, power)) - float(stdtrit(degrees, level))


@dataclass(frozen=True)
class Fit:
    """The fit of a table. estimates: of each row. repeats: of each row.

    noise: the variance of each row's mean. shared: rows x blocks, and blocks: what each row takes on of the
    variance of blocks, and their covariance. degrees: of each row's noise; 0 where nothing is known of it.
    component: rows of one number are linked by the blocks that they share. dispersion: the factor for what
    differs between processes; None without turns. summary: of a repeat.
    """

    rows: tuple[str, ...]
    estimates: Floats
    repeats: tuple[int, ...]
    noise: Floats
    shared: Floats
    blocks: Floats
    degrees: Floats
    component: Indices
    dispersion: float | None
    summary: str

    def errors(self, some: Indices, others: Indices) -> Floats:
        """Return the standard errors of the differences between rows of one component: some x others."""
        covariance = self.shared[some] @ self.blocks @ self.shared[others].T
        return np.sqrt(np.maximum(self._own[some][:, None] + self._own[others] - 2 * covariance, 0.0))

    @cached_property
    def _own(self) -> Floats:
        return np.asarray(self.noise + np.einsum("ij,ij->i", self.shared @ self.blocks, self.shared))

    @property
    def variance(self) -> float:
        """The sum of the variances of all estimates, each about the mean of the rows linked to it."""
        number = np.bincount(self.component)[self.component]
        about = self.shared - _means(self.shared, self.component)[self.component]
        return float(self.noise @ (1 - 1 / number) + np.einsum("ij,ij->", about @ self.blocks, about))

    def places(self, names: Iterable[str]) -> Indices:
        """Return the numbers of rows."""
        return np.array([self._place[name] for name in names])

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.rows)}

    def contrast(self, weights: Mapping[str, float]) -> Contrast:
        """Return the weighted sum of rows; the weights add up to 0."""
        return self.contrasts(self.places(weights), np.array([[*weights.values()]]))[0]

    def contrasts(self, at: Indices, weights: Floats) -> list[Contrast]:
        """Return a weighted sum of the rows `at` for each row of weights; no weight of a sum is 0."""
        blocks = np.flatnonzero(self.shared[at].any(axis=0))
        shared = weights @ self.shared[np.ix_(at, blocks)]
        covariance = np.einsum("ij,ij->i", shared @ self.blocks[np.ix_(blocks, blocks)], shared)
        errors = np.sqrt(np.maximum(np.square(weights) @ self.noise[at] + covariance, 0.0))
        is_linked = len({*self.component[at].tolist()}) == 1
        degrees = float(self.degrees[at].min()) if is_linked else 0.0
        values = weights @ self.estimates[at]
        return [Contrast(*both, degrees) for both in zip(values.tolist(), errors.tolist(), strict=True)]


def _mean(turns: Turns) -> float:
    return math.fsum(math.log(np.exp(turn).mean()) for turn in turns) / len(turns)


def _trimmed(turns: Turns) -> float:
    values = np.sort(np.concatenate(turns))
    cut = len(values) // 4
    return float(values[cut : len(values) - cut].mean())


def _lower(turns: Turns) -> float:
    values = np.sort(np.concatenate(turns))
    return float(values[: (len(values) + 1) // 2].mean())


Summary = Callable[[Turns], float]
SUMMARIES: Mapping[str, Summary] = {"mean": _mean, "trimmed": _trimmed, "lower half": _lower}
"""How a repeat becomes one value. A stall moves the mean of all steps, and hardly the means of some."""


def cells_of(summaries: Sequence[ConfigSummary], goal: Goal) -> list[Cell]:
    """Return the cells of a goal's metric: of each configuration, and of each `alone` beside them.

    Without turns, and for a metric that is none of the mean time, a repeat has one value.
    """
    metric = metric_named(goal.metric)
    sign = -1 if goal.direction == "maximize" else 1
    is_time = metric.unit in TIMED and metric.compute is None
    cells: dict[tuple[str, str, str], Cell] = {}
    for summary in summaries:
        for record in summary.ok:
            value = metric.read(record)
            if not (isinstance(value, int | float) and value >= 0):
                continue
            heat, row, of = record.heat, summary.trial_id, f"round {record.run_id} {record.repeat}"
            cost = sign * math.log(value or _NOTHING)
            has_turns = is_time and goal.metric not in STEP_TIMES[1:]
            turns = _turns(record, cost) if has_turns else (np.array([cost]),)
            block = f"heat {heat.name}" if heat is not None else of
            cells[row, of, block] = Cell(row, of, block, turns)
            if is_time and heat is not None and heat.alone:
                row, seconds = alone_row(record), tuple(np.log([one]) for one in heat.alone)
                cells[row, of, block] = Cell(row, of, block, seconds)
    return list(cells.values())


def alone_row(record: Record) -> str:
    """Return the row of `alone` beside a record: what configurations have in common that share one."""
    config = record.config
    run, engine = config.get("run", {}), config.get("engine", {})
    how = [run.get("world_size"), run.get("threads_per_rank"), *map(engine.get, ALONE_KEYS)]
    return "alone: " + json.dumps([config.get("workload"), *how], sort_keys=True)


def _turns(record: Record, cost: float) -> Turns:
    """Return the costs of the steps of each turn; one value where there were no turns."""
    timing, heat = record.timing, record.heat
    if timing is None or heat is None or not heat.turn_seconds or not timing.mean_step_s:
        return (np.array([cost]),)
    moved = cost - math.log(timing.mean_step_s)  # from seconds to the goal's metric
    count, steps = len(heat.turn_seconds), timing.step_seconds
    if len(steps) < count or min(steps) <= 0:
        return tuple(np.log([seconds]) + moved for seconds in heat.turn_seconds)
    ends = [len(steps) * turn // count for turn in range(1, count)]
    return tuple(np.split(np.log(steps) + moved, ends))


class _Layout:
    """The cells of a table by numbers, and the least squares of `row + block`."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.rows = tuple(dict.fromkeys(cell.row for cell in cells))
        rows = {name: number for number, name in enumerate(self.rows)}
        blocks = {name: number for number, name in enumerate(dict.fromkeys(cell.block for cell in cells))}
        self.row = np.array([rows[cell.row] for cell in cells])
        self.block = np.array([blocks[cell.block] for cell in cells])
        self.component = _components(self.row, self.block, len(self.rows))
        parts = len({*self.component.tolist()})
        self.degrees = len(cells) - len(self.rows) - len(blocks) + parts
        self.between = len(self.rows) - parts

    def solve(self, values: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return the estimates of rows, and the inverse of the blocks' normal equations. weights: of rows.

        Rows are eliminated first (Schur complement). Each linked part of the table has its mean row at 0.
        """
        part = np.zeros(len(self.shared.T), int)
        part[self.block] = self.component[self.row]
        same = (part[:, None] == part[None, :]) * weights.mean()
        inverse = np.linalg.inv(self.normal(weights) + same)
        means = _means(values, self.row)
        rest = np.bincount(self.block, weights[self.row] * (values - means[self.row]))
        estimates = means - self.shared @ (inverse @ rest)
        return estimates - _means(estimates, self.component)[self.component], inverse

    def normal(self, weights: Floats) -> Floats:
        """Return the normal equations of the blocks once rows are eliminated. weights: of rows."""
        normal = np.diag(np.bincount(self.block, weights[self.row]))
        order = np.argsort(self.row, kind="stable")
        row, block = self.row[order], self.block[order]
        share = weights[row] / np.bincount(row)[row]
        for ahead in range(int(np.bincount(row).max())):  # pairs of cells of one row
            first = np.flatnonzero(row[: len(row) - ahead] == row[ahead:])
            for pair in {(0, ahead), (ahead, 0)}:
                np.add.at(normal, (block[first + pair[0]], block[first + pair[1]]), -share[first])
        return np.asarray(normal, float)

    @cached_property
    def shared(self) -> Floats:
        """Which share of the cells of each row is in each block."""
        counts = np.zeros((len(self.rows), int(self.block.max()) + 1))
        np.add.at(counts, (self.row, self.block), 1.0)
        return np.asarray(counts / counts.sum(axis=1)[:, None])

    def residuals(self, values: Floats, estimates: Floats, weights: Floats) -> Floats:
        """Return what rows and blocks do not explain."""
        return self.centred(values - estimates[self.row], weights)

    def centred(self, values: Floats, weights: Floats) -> Floats:
        """Return the values about the weighted means of their blocks."""
        means = np.bincount(self.block, weights * values) / np.bincount(self.block, weights)
        return np.asarray(values - means[self.block])


def _means(values: Floats, number: Indices) -> Floats:
    """Return the means of values, or of rows of them, of each number from 0; 0 where there are none."""
    total = np.zeros((int(number.max()) + 1, *values.shape[1:]))
    np.add.at(total, number, values)
    return np.asarray((total.T / np.maximum(np.bincount(number), 1)).T)


def _components(row: Indices, block: Indices, rows: int) -> Indices:
    """Return for each row the number of the part of the table that blocks link it to."""
    part = np.arange(rows)
    while True:
        lowest = np.full(int(block.max()) + 1, rows)
        np.minimum.at(lowest, block, part[row])
        linked = part.copy()
        np.minimum.at(linked, row, lowest[block])
        if (linked == part).all():
            return part
        part = linked


def fitted(cells: Sequence[Cell], summary: str | None = None) -> Fit:
    """Return the fit of a table of one cell or more. summary: one of SUMMARIES; None for that of least error.

    The summary is chosen by the spread of the whole table, never by its answer. One that shortens some rows
    by more than others is not chosen: what it leaves out is then these rows' own, and no stall of the
    machine. Where heats do not link all rows, rounds take their place.
    """
    layout = _Layout(cells)
    if layout.component.any():
        cells = [replace(cell, block=cell.round) for cell in cells]
        layout = _Layout(cells)
    if summary is not None:
        return _fit(cells, layout, summary)
    fits = [_fit(cells, layout, "mean")]
    if any(sum(map(len, cell.turns)) > 1 for cell in cells):
        fits += [_fit(cells, layout, name) for name in list(SUMMARIES)[1:] if _shortens_alike(cells, name)]
    return min(fits, key=lambda fit: fit.variance)


def _fit(cells: Sequence[Cell], layout: _Layout, summary: str) -> Fit:
    values = np.array([SUMMARIES[summary](cell.turns) for cell in cells])
    repeats = np.bincount(layout.row)
    if all(len(cell.turns) > 1 for cell in cells):
        of_row, degrees = _turn_noise(cells, layout, SUMMARIES[summary])
        weights = of_row.mean() / of_row
    else:
        of_row, weights = None, np.ones(len(layout.rows))
    estimates, inverse = layout.solve(values, weights)
    squares = np.square(layout.residuals(values, estimates, weights[layout.row]))
    dispersion = None
    if of_row is None:
        taken = layout.shared @ inverse
        free = repeats * (1 - layout.shared @ np.diag(inverse) + np.einsum("ij,ij->i", taken, layout.shared))
        free = np.maximum(free - 1, 0.0)
        own = np.bincount(layout.row, squares) / np.maximum(free, EXACT)
        noise, degrees = shrunk(own, free)
        noise = np.maximum(noise, np.where(free > EXACT, own, 0.0))  # two repeats show no unlike noise
    else:
        dispersion, about = _dispersion(float(squares @ (1 / of_row)[layout.row]), layout.degrees)
        uneven = float(np.ptp(of_row) > 0)  # where all rows have one variance, the factor alone is uncertain
        noise, degrees = dispersion * of_row, 1 / (1 / about + uneven / degrees)
    if layout.degrees < 1:
        degrees = np.zeros(len(layout.rows))
    return Fit(
        layout.rows, estimates, tuple(repeats.tolist()), noise / repeats, layout.shared,
        inverse @ layout.normal(np.square(weights) * noise) @ inverse, degrees, layout.component,
        dispersion, summary,
    )  # fmt: skip


def _turn_noise(cells: Sequence[Cell], layout: _Layout, summarized: Summary) -> tuple[Floats, Floats]:
    """Return the variance of a repeat of each row as its turns show it (jackknife), shrunk; and its
    degrees.
    """
    variances, turns = np.empty(len(cells)), np.array([len(cell.turns) for cell in cells])
    for number, cell in enumerate(cells):
        without = [summarized(cell.turns[:i] + cell.turns[i + 1 :]) for i in range(len(cell.turns))]
        variances[number] = np.var(without) * (len(without) - 1)
    means = np.bincount(layout.row, variances) / np.bincount(layout.row)
    return shrunk(means, np.bincount(layout.row, turns - 1.0))


def _dispersion(squares: float, degrees: int) -> tuple[float, float]:
    """Return the factor for what differs between processes, and its degrees of freedom."""
    if degrees > 0 and fdtr(degrees, 20.0, squares / degrees / _DISPERSION) > _UNUSUAL:
        return squares / degrees, float(degrees)
    about = _DISPERSION_DEGREES + degrees
    return (_DISPERSION_DEGREES * _DISPERSION + squares) / about, about


def _shortens_alike(cells: Sequence[Cell], summary: str) -> bool:
    """Say whether a summary lies below the mean by like shares in all rows."""
    own = [cell for cell in cells if not cell.row.startswith("alone: ")]  # it has no steps, only turns
    layout, ones = _Layout(own), np.ones(len(own))
    gaps = np.array([_mean(cell.turns) - SUMMARIES[summary](cell.turns) for cell in own])
    if layout.degrees < 1 or layout.between < 1:
        return True
    estimates, _ = layout.solve(gaps, np.ones(len(layout.rows)))
    within = float(np.square(layout.residuals(gaps, estimates, ones)).sum())
    between = float(np.square(layout.centred(gaps, ones)).sum()) - within
    ratio = (between / layout.between) / max(within / layout.degrees, EXACT**2)
    return float(fdtr(layout.between, layout.degrees, ratio)) < _DIFFERENT
