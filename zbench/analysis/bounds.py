"""Multiple comparisons with the best: how far each row of a table can be from it, and which rows may be it.
Pure.

Hsu, "Constrained simultaneous confidence intervals for multiple comparisons with the best", Annals of
Statistics 12 (1984), with critical values of Dunnett, "A multiple comparison procedure for comparing
several treatments with a control", JASA 50 (1955). All bounds hold together with probability `1 - alpha`;
each side has half of alpha.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from scipy.special import gammaln, ndtr

from zbench.analysis.cells import Indices
from zbench.analysis.ratios import EXACT, Fit
from zbench.analysis.variances import Floats

_NODES = 96
_WIDEST = 8.0
"""Standard deviations: beyond them lies less of either distribution than the quadrature's error."""

_MOST_DEGREES = 500
_AT_ONCE = 256  # rows that are compared with all others
_NAMED = 0.01
"""The chance of naming a best where all are equal, however few they are."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of each row, by row: at least and at most so far (logarithms) from whichever is best.

    leaders: the rows that may be the best, the apparently best first; one alone is the best.
    """

    leaders: tuple[str, ...]
    at_least: dict[str, float]
    at_most: dict[str, float]


def bounds_of(fit: Fit, rows: Sequence[str], alpha: float) -> Bounds:
    """Return the bounds of these rows of a fit, compared with one another."""
    at = fit.places(rows)
    count = len(rows)
    estimates = fit.estimates[at]
    leads = np.empty(count, bool)
    most = np.empty(count)
    bound = partial(dunnett, count - 1, alpha=alpha / 2)
    for some in np.array_split(np.arange(count), -(-count // _AT_ONCE)):
        gaps = estimates[some][:, None] - estimates
        critical = _critical(fit, at[some], at, bound)
        leads[some] = (gaps <= critical).all(axis=1)
        most[some] = (gaps + critical).max(axis=1)
    order = np.argsort(np.round(estimates / EXACT), kind="stable")
    if leads.sum() == 1:
        first = np.flatnonzero(leads)
        leads |= (
            estimates - estimates[first]
            <= _critical(fit, at, at[first], partial(naming_value, count - 1))[:, 0]
        )
    leaders = order[leads[order]]
    rest = np.flatnonzero(~leads)
    least = np.zeros(count)
    for some in np.array_split(rest, -(-len(rest) // _AT_ONCE) or 1):
        gaps = estimates[some][:, None] - estimates[leaders]
        least[some] = (gaps - _critical(fit, at[some], at[leaders], bound)).min(axis=1).clip(0.0)
    return Bounds(
        tuple(rows[i] for i in leaders),
        dict(zip(rows, least.tolist(), strict=True)),
        dict(zip(rows, most.tolist(), strict=True)),
    )


def under_load(by_time: Bounds, by_cpu: Bounds | None) -> Bounds:
    """Return the bounds that hold if other processes took CPU time from the rows.

    The scheduler favours processes that block often, so load changes the step times of rows differently. A
    row is behind the best only as far as both its step times and its CPU time say so. CPU time does not show
    the time that a row waits. by_cpu: None if CPU times are not known; then no row is behind.
    """
    if by_cpu is None:
        return Bounds(tuple(by_time.at_least), dict.fromkeys(by_time.at_least, 0.0), {})
    leaders = dict.fromkeys((*by_time.leaders, *by_cpu.leaders))
    behind = [row for row in by_time.at_least if row not in leaders]
    least = {row: min(by_time.at_least[row], by_cpu.at_least[row]) for row in behind}
    most = {row: max(by_time.at_most[row], by_cpu.at_most[row]) for row in by_time.at_most}
    return Bounds(tuple(leaders), dict.fromkeys(leaders, 0.0) | least, most)


def _critical(fit: Fit, some: Indices, others: Indices, value: Callable[[int], float]) -> Floats:
    """Return the critical differences, some x others. value: in standard errors, by degrees of freedom.

    They are infinite where nothing is known of the noise, and 0 between a row and itself.
    """
    whole = np.clip(np.floor(fit.degrees + EXACT), 0, _MOST_DEGREES).astype(int)
    values = np.full(_MOST_DEGREES + 1, math.inf)
    for count in {*whole.tolist()} - {0}:
        values[count] = value(count)
    degrees = np.minimum(whole[some][:, None], whole[others])
    is_linked = (degrees > 0) & (fit.component[some][:, None] == fit.component[others])
    critical = np.where(is_linked, np.maximum(values[degrees] * fit.errors(some, others), EXACT), math.inf)
    return np.where(some[:, None] == others, 0.0, critical)


@cache
def dunnett(others: int, degrees: int, alpha: float) -> float:
    """Return d with P(max over `others` of (Z_i - Z_0) / (sqrt(2) S) <= d) = 1 - alpha.

    Z are independent standard normal, S**2 is chi-squared over its `degrees`: the one-sided critical value
    for equal sample sizes, where differences from a common mean correlate by 1/2. scipy has the
    distribution only as a p-value of samples.
    """
    return _bisected(lambda d: _chance(others, degrees, d, below=True) < 1 - alpha)


@cache
def naming_value(others: int, degrees: int, alpha: float = _NAMED) -> float:
    """Return d with P(some row is ahead of all `others` by d) = alpha where all are equal."""
    if others < 1:
        return 0.0
    share = alpha / (others + 1)
    return _bisected(lambda d: _chance(others, degrees, d, below=False) > share)


def _chance(others: int, degrees: int, d: float, *, below: bool) -> float:
    """Return P(all `others` of (Z_i - Z_0) / (sqrt(2) S) lie below, or above, d), by Gauss-Legendre
    quadrature.
    """
    z, z_weights, s, s_weights = _nodes(degrees)
    share = ndtr((1 if below else -1) * (z[:, None] + math.sqrt(2) * d * s[None, :]))
    return float(z_weights @ share**others @ s_weights)


@cache
def _nodes(degrees: int) -> tuple[Floats, Floats, Floats, Floats]:
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    z = _WIDEST * points
    z_weights = _WIDEST * weights * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    reach = _WIDEST / math.sqrt(2 * degrees)  # of S about 1; with many degrees all of its mass lies there
    lowest = max(0.0, 1 - reach)
    highest = 1 + reach
    half_range = (highest - lowest) / 2
    s = lowest + half_range * (points + 1)
    half = degrees / 2
    log_density = math.log(2) + half * math.log(half) - float(gammaln(half))
    s_weights = half_range * weights * np.exp(log_density + (degrees - 1) * np.log(s) - half * s**2)
    return z, z_weights, s, s_weights


def _bisected(is_low: Callable[[float], bool]) -> float:
    low, high = 0.0, 2000.0
    while high - low > 1e-6:  # importing scipy.optimize takes longer than all of this
        middle = (low + high) / 2
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return high
