"""Multiple comparisons with the best, paired by round, of a table of logarithms. Pure.

Less is better. A pair of rows is compared over the rounds that both have: the mean of the differences is held
against Dunnett's one-sided critical difference of the whole table, or against the spread of the pair's own
differences where that is larger, so that no quiet field lends its precision to two noisy rows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtr, stdtrit

_NODES = 96
_WIDEST = 8.0
"""Standard deviations: beyond them lies less of either distribution than the quadrature's error."""


@cache
def one_sided_dunnett(others: int, degrees: int, alpha: float) -> float:
    """Return d with P(max over `others` of (Z_i - Z_0) / (sqrt(2) S) <= d) = 1 - alpha.

    Z are independent standard normal, S**2 is chi-squared over its `degrees`: the one-sided critical value of
    Dunnett ("A multiple comparison procedure for comparing several treatments with a control", JASA 50, 1955)
    for equal sample sizes, where differences from a common mean correlate by 1/2. Both integrals are taken by
    Gauss-Legendre quadrature; scipy has the distribution only as a p-value of samples.
    """
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    z = _WIDEST * points
    z_weights = _WIDEST * weights * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    reach = _WIDEST / math.sqrt(2 * degrees)  # of S about 1; with many degrees all of its mass lies there
    lowest, highest = max(0.0, 1 - reach), 1 + reach
    half_range = (highest - lowest) / 2
    s = lowest + half_range * (points + 1)
    half = degrees / 2
    log_density = math.log(2) + half * math.log(half) - float(gammaln(half))
    s_weights = half_range * weights * np.exp(log_density + (degrees - 1) * np.log(s) - half * s**2)

    def miss(d: float) -> float:
        below = ndtr(z[:, None] + math.sqrt(2) * d * s[None, :]) ** others
        return float(z_weights @ below @ s_weights) - (1 - alpha)

    low, high = 0.0, 2000.0
    while high - low > 1e-6:  # bisection: importing scipy.optimize takes longer than all of this
        middle = (low + high) / 2
        low, high = (middle, high) if miss(middle) < 0 else (low, middle)
    return high


Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_BLOCK = 65_536
"""Pairs that are compared at once: half a megabyte an array, which stays in the processor's cache."""

_EXACT = 1e-9
"""Exact figures, such as bytes, have no noise; logarithms of them that are closer than this are equal."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The least-squares fit of a two-way layout without interaction.

    effects: of each row; NaN where it has no cell. rounds: the effect of each round. deviation: the standard
    deviation of one cell, infinite where the layout leaves no degrees of freedom.
    """

    effects: Floats
    rounds: Floats
    deviation: float
    degrees: int


def two_way_fit(table: Floats) -> Fit:
    """Return the fit of `cell = row + round` to the cells of (rows, rounds) that are not NaN.

    The rows are eliminated first, so the system to solve has one equation a round, however many rows.
    """
    there = ~np.isnan(table)
    cells = there.sum(axis=1).astype(float)
    values = np.where(there, table, 0.0)
    share = np.divide(there, cells[:, None], out=np.zeros(table.shape), where=cells[:, None] > 0)
    means = np.divide(values.sum(axis=1), cells, out=np.full(len(table), np.nan), where=cells > 0)
    centred = np.where(there, values - means[:, None], 0.0)
    normal = np.diag(there.sum(axis=0).astype(float)) - share.T @ there
    rounds = np.linalg.lstsq(normal, centred.sum(axis=0), rcond=None)[0]
    effects = means - (share * rounds).sum(axis=1)
    degrees = int(there.sum() - (cells > 0).sum() - there.any(axis=0).sum() + 1)
    if degrees < 1:
        return Fit(effects, rounds, math.inf, degrees)
    left = np.where(there, values - rounds - effects[:, None], 0.0)
    return Fit(effects, rounds, math.sqrt(float(np.square(left).sum()) / degrees), degrees)


class Comparisons:
    """The rows of a table, each compared with each other one.

    leaders: the rows that no other beats for sure, the apparently best first.
    """

    def __init__(self, cells: Sequence[Sequence[float]], alpha: float) -> None:
        """Take (rows, rounds), NaN for a missing cell; alpha: one-sided error of naming one of equals."""
        table = np.asarray(cells, dtype=np.float64)
        self._there = (~np.isnan(table)).astype(np.float64)
        fit = two_way_fit(table)
        self._effects = np.nan_to_num(fit.effects)  # a row without a cell is compared with none
        self._left = np.nan_to_num(table - fit.rounds - fit.effects[:, None])
        self._pooled = _pooled_critical(fit, len(table), alpha)
        # one round has no spread of its own: the pooled one decides
        counts = np.arange(2, table.shape[1] + 1)
        per_root = np.sqrt(counts * (counts - 1))  # from a sum of squares to a standard error
        self._student: Floats = np.concatenate([[0.0, 0.0], -stdtrit(counts - 1, alpha) / per_root])
        order: Indices = np.argsort(fit.effects, kind="stable")
        beaten = [(mean > critical).any(axis=1) for _, mean, critical in self._pairs(order, order)]
        unbeaten = order[~np.concatenate(beaten)]
        self.leaders = unbeaten if len(unbeaten) else order[:1]  # missing cells can make a circle of rows

    def worse_by(self) -> dict[int, float]:
        """Return for each row that does not lead by how much (a logarithm) it is worse than any leader."""
        rest = np.setdiff1d(np.arange(len(self._effects)), self.leaders)
        gaps: dict[int, float] = {}
        for rows, mean, critical in self._pairs(rest, self.leaders):
            least = (mean - critical).min(axis=1)
            gaps |= zip(rows.tolist(), np.maximum(least, 0.0).tolist(), strict=True)
        return gaps

    def equal_within(self) -> float | None:
        """Return the fraction within which all leaders are equal for sure; None for one, or if unknown."""
        widest = -math.inf
        for rows, mean, critical in self._pairs(self.leaders, self.leaders):
            bounds = np.where(rows[:, None] == self.leaders, -np.inf, mean + critical)
            widest = max(widest, float(bounds.max()))
        return math.expm1(widest) if math.isfinite(widest) else None

    def _pairs(self, rows: Indices, others: Indices) -> Iterator[tuple[Indices, Floats, Floats]]:
        """Yield some rows at a time, their mean differences to each other, and from which on each counts.

        Sums over the rounds that both have are products of matrices, where missing cells are zeros.
        The effects are taken out before, so what is squared and subtracted is as small as the noise.
        """
        b, here = self._left[others], self._there[others]
        height = max(1, _BLOCK // len(others))
        for block in (rows[start : start + height] for start in range(0, len(rows), height)):
            a, there = self._left[block], self._there[block]
            rounds = there @ here.T
            number = np.maximum(rounds, 1)
            mean = (a @ here.T - there @ b.T) / number
            products = np.square(a) @ here.T + there @ np.square(b).T - 2 * (a @ b.T)
            squares = np.maximum(products - np.square(mean) * number, 0.0)
            own = np.sqrt(squares) * self._student[rounds.astype(np.intp)]
            critical = np.maximum(self._pooled * np.sqrt(2 / number), own)
            critical[rounds == 0] = np.inf
            mean += self._effects[block, None] - self._effects[None, others]
            yield block, mean, critical


def _pooled_critical(fit: Fit, count: int, alpha: float) -> float:
    """Return Dunnett's critical value times the standard deviation of one cell of the table.

    Among equals one is named with probability `alpha` at most: Hsu's "best" allows a tie, so each side has
    half of `alpha` here.
    """
    if math.isinf(fit.deviation):
        return math.inf
    return max(_EXACT, one_sided_dunnett(count - 1, fit.degrees, alpha / 2) * fit.deviation)
