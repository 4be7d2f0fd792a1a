"""Multiple comparisons with the best, paired by round, of a table of logarithms. Pure.

Less is better. A pair of rows is compared over the rounds that both have: the mean of the differences is held
against Dunnett's one-sided critical difference of the whole table, or against the spread of the pair's own
differences where that is larger, so that no quiet field lends its precision to two noisy rows.
"""

import math
from collections.abc import Sequence
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

    leaders: the rows that no other beats for sure, the apparently best first. effects: the estimate of each
    row; NaN where it has no cell.
    """

    def __init__(self, cells: Sequence[Sequence[float]], alpha: float) -> None:
        """Take (rows, rounds), NaN for a missing cell; alpha: the error of naming one of equals.

        Hsu's "best" allows a tie, so each side has half of `alpha` here.
        """
        self._table = np.asarray(cells, dtype=np.float64)
        fit = two_way_fit(self._table)
        self._pooled = _pooled_critical(fit, len(self._table), alpha)
        # one round has no spread of its own: the pooled one decides
        counts = np.arange(2, self._table.shape[1] + 1)
        per_root = np.sqrt(counts * (counts - 1))  # from a sum of squares to a standard error
        self._student: Floats = np.concatenate([[0.0, 0.0], -stdtrit(counts - 1, alpha / 2) / per_root])
        self.effects = fit.effects
        order: Indices = np.argsort(fit.effects, kind="stable")
        unbeaten = order[[not self._beaten(row, order) for row in order]]
        self.leaders = unbeaten if len(unbeaten) else order[:1]  # missing cells can make a circle of rows

    def worse_by(self) -> dict[int, float]:
        """Return for each row that does not lead by how much (a logarithm) it is worse than any leader."""
        gaps: dict[int, float] = {}
        for row in np.setdiff1d(np.arange(len(self._table)), self.leaders).tolist():
            mean, critical = self._differences(row, self.leaders)
            gaps[row] = max(0.0, float((mean - critical).min()))
        return gaps

    def equal_within(self) -> float | None:
        """Return the fraction within which all leaders are equal for sure; None for one, or if unknown."""
        widest = -math.inf
        for row in self.leaders.tolist():
            mean, critical = self._differences(row, self.leaders[self.leaders != row])
            widest = max(widest, float((mean + critical).max(initial=-math.inf)))
        return math.expm1(min(widest, 700.0)) if math.isfinite(widest) else None

    def _beaten(self, row: int, others: Indices) -> bool:
        mean, critical = self._differences(row, others)
        return bool((mean > critical).any())

    def _differences(self, row: int, others: Indices) -> tuple[Floats, Floats]:
        """Return a row's mean difference to each of the others, and from which on each counts."""
        differences = self._table[row] - self._table[others]  # NaN where one of both has no cell
        there = ~np.isnan(differences)
        rounds = there.sum(axis=1)
        number = np.maximum(rounds, 1)
        mean = np.where(there, differences, 0.0).sum(axis=1) / number
        left = np.where(there, differences - mean[:, None], 0.0)
        own = np.sqrt(np.square(left).sum(axis=1)) * self._student[rounds]
        critical = np.maximum(self._pooled * np.sqrt(2 / number), own)
        critical[rounds == 0] = np.inf
        return mean, critical


def _pooled_critical(fit: Fit, count: int, alpha: float) -> float:
    """Return Dunnett's critical value times the standard deviation of one cell of the table."""
    if math.isinf(fit.deviation):
        return math.inf
    return max(_EXACT, one_sided_dunnett(count - 1, fit.degrees, alpha / 2) * fit.deviation)
