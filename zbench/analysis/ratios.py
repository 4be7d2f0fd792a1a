"""The table of log times of a sweep: configuration x heat x turn, built once from records. Pure.

Rankings, relative tables, `of_compute` and the effects of axes are contrasts of its fit `value = row +
heat`. All values are logarithms, less is better, so a contrast is the logarithm of a ratio.

A repeat is one look at a process, and its turns say how noisy the look is. The variance between turns is
shrunk over all rows (`zbench.analysis.variances`). What differs between processes multiplies it by one
factor, the dispersion of the whole table (quasi-likelihood; McCullagh and Nelder, "Generalized Linear
Models", 1989, chapter 9). The factor has a prior, because repeats are few. Without turns the variance is that
of each row's residuals, shrunk alike.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array
from scipy.special import fdtr, stdtr, stdtrit

from zbench.analysis.cells import ALONE, SUMMARIES, Cell, Indices, Summary, alike_cells
from zbench.analysis.variances import Floats, shrunk

TAIL = 0.025  # of a 95 % interval
EXACT = 1e-9
"""Exact figures, such as bytes, have no noise; logarithms of them that are closer than this are equal."""

MOST_DENSE = 10_000
"""Elements of a matrix up to which it is dense; a small one is faster so than a sparse one."""

_DISPERSION, _DISPERSION_DEGREES = 1.6, 4.0
"""The prior: what processes add to the noise of turns in the sweeps under results/benchmarks, and its
weight.
"""

_UNUSUAL = 0.9  # of F: a table whose dispersion exceeds the prior by so much has its own alone
_DIFFERENT = 0.95  # of F: rows that a summary shortens by so different shares are not compared by it


Matrix: TypeAlias = "Floats | csr_array"
"""Dense where it is small; `*` is by element, of either."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """The logarithm of a ratio, its standard error, and that error's degrees of freedom: 0 if it is
    unknown.
    """

    value: float
    error: float
    degrees: float

    @property
    def in_errors(self) -> float:
        """How many standard errors the value is from 0."""
        return abs(self.value) / self.error if self.error else math.inf

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
        return reach(self.degrees, level, power) * self.error

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
    shared: Matrix
    blocks: Floats
    degrees: Floats
    component: Indices
    dispersion: float | None
    summary: str

    def errors(self, some: Indices, others: Indices) -> Floats:
        """Return the standard errors of the differences between rows of one component: some x others."""
        covariance = self.shared[some] @ self.blocks @ self.shared[others].T
        variances = self._own[some][:, None] + self._own[others]
        return np.asarray(np.sqrt(np.maximum(variances - 2 * covariance, 0.0)))

    @cached_property
    def _own(self) -> Floats:
        return np.asarray(self.noise + _squares(self.shared, self.blocks))

    @property
    def variance(self) -> float:
        """The sum of the variances of all estimates, each about the mean of the rows linked to it."""
        number = np.bincount(self.component)
        rows = np.arange(len(self.component))
        sums = _matrix(np.ones(len(rows)), self.component, rows) @ self.shared
        common = _squares(sums, self.blocks) + np.bincount(self.component, self.noise)
        return float(self._own.sum() - (common / np.maximum(number, 1)).sum())

    def places(self, names: Iterable[str]) -> Indices:
        """Return the numbers of rows."""
        return np.array([self._place[name] for name in names])

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.rows)}

    def contrast(self, weights: Mapping[str, float]) -> Contrast:
        """Return the weighted sum of rows; the weights add up to 0."""
        at = self.places(weights)
        values = [*weights.values()]
        return self.contrasts(csr_array((values, (at * 0, at)), shape=(1, len(self.rows))))[0]

    def against(self, name: str, others: Sequence[str]) -> list[Contrast]:
        """Return the contrast of one row with each of others."""
        row = self._place[name]
        at = self.places(others)
        values = self.estimates[row] - self.estimates[at]
        errors = self.errors(np.array([row]), at)[0]
        is_linked = self.component[row] == self.component[at]
        return _contrasts(values, errors, np.minimum(self.degrees[row], self.degrees[at]) * is_linked)

    def mean_differences(self, ends: Indices, number: Indices) -> csr_array:
        """Return the weights [numbers, rows] of the mean difference of all ends [pairs, 2] of each number."""
        shares = 1 / np.bincount(number)[number]
        places = (np.repeat(number, 2), ends.ravel())
        shape = (int(number.max()) + 1, len(self.rows))
        return csr_array((np.outer(shares, (1, -1)).ravel(), places), shape=shape)

    def contrasts(self, weights: csr_array) -> list[Contrast]:
        """Return a weighted sum of rows for each row of weights [sums, rows], none of which is 0."""
        variances = weights.power(2) @ self.noise + _squares(weights @ self.shared, self.blocks)
        part, starts = self.component[weights.indices], weights.indptr[:-1]
        is_linked = np.minimum.reduceat(part, starts) == np.maximum.reduceat(part, starts)
        degrees = np.minimum.reduceat(self.degrees[weights.indices], starts) * is_linked
        return _contrasts(weights @ self.estimates, np.sqrt(np.maximum(variances, 0.0)), degrees)


def _contrasts(*fields: Floats) -> list[Contrast]:
    return [Contrast(*each) for each in zip(*(field.tolist() for field in fields), strict=True)]


class _Layout:
    """The cells of a table by numbers, and the least squares of `row + block`."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.rows = tuple(dict.fromkeys(cell.row for cell in cells))
        rows = {name: number for number, name in enumerate(self.rows)}
        blocks = {name: number for number, name in enumerate(dict.fromkeys(cell.block for cell in cells))}
        self.alike = list(alike_cells(cells))
        self.row = np.array([rows[cell.row] for cell in cells])
        self.block = np.array([blocks[cell.block] for cell in cells])
        self.component = _components(self.row, self.block, len(self.rows))
        parts = len({*self.component.tolist()})
        self.degrees = len(cells) - len(self.rows) - len(blocks) + parts
        self.between = len(self.rows) - parts

    def summarized(self, summary: Summary) -> Floats:
        """Return one value of each cell."""
        values = np.empty(len(self.row))
        for numbers, turns in self.alike:
            values[numbers] = summary(turns)
        return values

    def solve(self, values: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return the estimates of rows, and the inverse of the blocks' normal equations. weights: of rows.

        Rows are eliminated first (Schur complement). Each linked part of the table has its mean row at 0.
        """
        part = np.zeros(self.shared.shape[1], int)
        part[self.block] = self.component[self.row]
        same = (part[:, None] == part[None, :]) * weights.mean()
        inverse = np.linalg.inv(self.normal(weights) + same)
        means = _means(values, self.row)
        rest = np.bincount(self.block, weights[self.row] * (values - means[self.row]))
        estimates = means - self.shared @ (inverse @ rest)
        return estimates - _means(estimates, self.component)[self.component], inverse

    def normal(self, weights: Floats) -> Floats:
        """Return the normal equations of the blocks once rows are eliminated. weights: of rows."""
        of_rows = self.shared * (weights * np.bincount(self.row))[:, None]
        within = _dense(self.shared.T @ of_rows)
        return np.asarray(np.diag(np.bincount(self.block, weights[self.row])) - within)

    @cached_property
    def shared(self) -> Matrix:
        """Which share of the cells of each row is in each block."""
        return _matrix(1 / np.bincount(self.row)[self.row], self.row, self.block)

    def residuals(self, values: Floats, estimates: Floats, weights: Floats) -> Floats:
        """Return what rows and blocks do not explain."""
        return self.centred(values - estimates[self.row], weights)

    def centred(self, values: Floats, weights: Floats) -> Floats:
        """Return the values about the weighted means of their blocks."""
        means = np.bincount(self.block, weights * values) / np.bincount(self.block, weights)
        return np.asarray(values - means[self.block])


def _means(values: Floats, number: Indices) -> Floats:
    """Return the means of values of each number from 0; 0 where there are none."""
    return np.asarray(np.bincount(number, values) / np.maximum(np.bincount(number), 1))


def _matrix(values: Floats, row: Indices, column: Indices) -> Matrix:
    """Return the matrix of these values, added up where they are in one place; all other places are 0."""
    shape = int(row.max()) + 1, int(column.max()) + 1
    if math.prod(shape) > MOST_DENSE:
        return csr_array((values, (row, column)), shape=shape)
    flat = np.bincount(row * shape[1] + column, values, minlength=math.prod(shape))
    return flat.reshape(shape)


def _dense(matrix: Matrix) -> Floats:
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def _squares(rows: Matrix, blocks: Floats) -> Floats:
    """Return what each row [rows, blocks] takes on of the covariance of blocks [blocks, blocks]: r C r'."""
    if isinstance(rows, csr_array) and rows.nnz < math.prod(rows.shape) / 10:
        return np.asarray(rows.multiply(rows @ blocks).sum(axis=1))
    dense = _dense(rows)
    return np.asarray((dense * (dense @ blocks)).sum(axis=1))


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
        return _fit(layout, summary)
    fits = [_fit(layout, "mean")]
    if any(sum(map(len, cell.turns)) > 1 for cell in cells):
        trials_layout = _Layout([cell for cell in cells if not cell.row.startswith(ALONE)])
        fits += [_fit(layout, name) for name in list(SUMMARIES)[1:] if _shortens_alike(trials_layout, name)]
    return min(fits, key=lambda fit: fit.variance)


def _fit(layout: _Layout, summary: str) -> Fit:
    values = layout.summarized(SUMMARIES[summary])
    repeats = np.bincount(layout.row)
    if all(len(turns) > 1 for _, turns in layout.alike):
        of_row, degrees = _turn_noise(layout, SUMMARIES[summary])
        weights = of_row.mean() / of_row
    else:
        of_row = None
        weights = np.ones(len(layout.rows))
    estimates, inverse = layout.solve(values, weights)
    squares = np.square(layout.residuals(values, estimates, weights[layout.row]))
    dispersion = None
    if of_row is None:
        free = repeats * (1 - layout.shared @ np.diag(inverse) + _squares(layout.shared, inverse))
        free = np.maximum(free - 1, 0.0)
        variances = np.bincount(layout.row, squares) / np.maximum(free, EXACT)
        noise, degrees = shrunk(variances, free)
        noise = np.maximum(noise, np.where(free > EXACT, variances, 0.0))  # two repeats show no unlike noise
    else:
        dispersion, about = _dispersion(float(squares @ (1 / of_row)[layout.row]), layout.degrees)
        uneven = float(np.ptp(of_row) > 0)  # where all rows have one variance, the factor alone is uncertain
        noise = dispersion * of_row
        degrees = 1 / (1 / about + uneven / degrees)
    if layout.degrees < 1:
        degrees = np.zeros(len(layout.rows))
    return Fit(
        layout.rows, estimates, tuple(repeats.tolist()), noise / repeats, layout.shared,
        inverse @ layout.normal(np.square(weights) * noise) @ inverse, degrees, layout.component,
        dispersion, summary,
    )  # fmt: skip


def _turn_noise(layout: _Layout, summarized: Summary) -> tuple[Floats, Floats]:
    """Return the variance of a repeat of each row as its turns show it (jackknife), shrunk; and its
    degrees.
    """
    variances, counts = np.empty(len(layout.row)), np.empty(len(layout.row))
    for numbers, turns in layout.alike:
        counts[numbers] = len(turns)
        without = [summarized(turns[:i] + turns[i + 1 :]) for i in range(len(turns))]
        variances[numbers] = np.var(without, axis=0) * (len(turns) - 1)
    means = np.bincount(layout.row, variances) / np.bincount(layout.row)
    return shrunk(means, np.bincount(layout.row, counts - 1))


def _dispersion(squares: float, degrees: int) -> tuple[float, float]:
    """Return the factor for what differs between processes, and its degrees of freedom."""
    if degrees > 0 and fdtr(degrees, 20.0, squares / degrees / _DISPERSION) > _UNUSUAL:
        return squares / degrees, float(degrees)
    about = _DISPERSION_DEGREES + degrees
    return (_DISPERSION_DEGREES * _DISPERSION + squares) / about, about


def _shortens_alike(layout: _Layout, summary: str) -> bool:
    """Say whether a summary lies below the mean by like shares in all rows."""
    ones = np.ones(len(layout.row))
    gaps = layout.summarized(SUMMARIES["mean"]) - layout.summarized(SUMMARIES[summary])
    if layout.degrees < 1 or layout.between < 1:
        return True
    estimates, _ = layout.solve(gaps, np.ones(len(layout.rows)))
    within = float(np.square(layout.residuals(gaps, estimates, ones)).sum())
    between = float(np.square(layout.centred(gaps, ones)).sum()) - within
    ratio = (between / layout.between) / max(within / layout.degrees, EXACT**2)
    return float(fdtr(layout.between, layout.degrees, ratio)) < _DIFFERENT
