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
from functools import cache

import numpy as np
from scipy.special import gammaln, ndtr

from zbench.analysis.ratios import EXACT, Fit
from zbench.analysis.variances import Floats

_NODES = 96
_WIDEST = 8.0
"""Standard deviations: beyond them lies less of either distribution than the quadrature's error."""

_MOST_DEGREES = 500
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
    at = [fit.rows.index(name) for name in rows]
    estimates, covariance = fit.estimates[at], fit.covariance(at)
    gaps = estimates[:, None] - estimates[None, :]
    variances = np.diag(covariance)
    errors = np.sqrt(np.maximum(variances[:, None] + variances[None, :] - 2 * covariance, 0.0))
    part, own = fit.component[at], fit.degrees[at]
    degrees = np.where(part[:, None] == part[None, :], np.minimum(own[:, None], own[None, :]), 0.0)
    critical = _critical(errors, degrees, len(rows) - 1, alpha / 2)
    np.fill_diagonal(critical, 0.0)
    order = np.argsort(np.round(estimates / EXACT), kind="stable")
    leads = np.asarray(~(gaps - critical > 0).any(axis=1))
    if not leads.any():
        leads[order[0]] = True
    if leads.sum() == 1:
        first = int(np.flatnonzero(leads)[0])
        near = gaps[:, first] <= _critical(errors, degrees, len(rows) - 1, None)[:, first]
        leads |= near & (np.arange(len(rows)) != first)
    leaders = [int(i) for i in order if leads[i]]
    least = np.where(leads, 0.0, np.maximum(0.0, (gaps - critical)[:, leaders].min(axis=1)))
    others = gaps + critical
    np.fill_diagonal(others, 0.0)
    most = others.max(axis=1)
    return Bounds(
        tuple(rows[i] for i in leaders),
        dict(zip(rows, least.tolist(), strict=True)),
        dict(zip(rows, most.tolist(), strict=True)),
    )


def _critical(errors: Floats, degrees: Floats, others: int, alpha: float | None) -> Floats:
    """Return the critical difference of each pair: Dunnett's at `alpha`; for None that of naming a best."""
    whole = np.clip(np.floor(degrees), 0, _MOST_DEGREES).astype(int)
    critical = np.full(errors.shape, math.inf)  # where nothing is known of the noise
    for count in {*whole.ravel().tolist()} - {0}:
        value = naming_value(others, count) if alpha is None else dunnett(others, count, alpha)
        critical[whole == count] = np.maximum(value * errors[whole == count], EXACT)
    return critical


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
    lowest, highest = max(0.0, 1 - reach), 1 + reach
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
