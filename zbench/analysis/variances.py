"""Variances of many rows with few repeats each: every one is shrunk towards what all have in common. Pure.

Empirical Bayes: Smyth, "Linear models and empirical Bayes methods for assessing differential expression in
microarray experiments", Statistical Applications in Genetics and Molecular Biology 3 (2004), section 6.2.
True variances are assumed to follow a scaled inverse chi-squared distribution, whose scale and degrees of
freedom are estimated from the mean and the variance of their logarithms.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

Floats = NDArray[np.float64]

_LEAST_ROWS = 3
_LEAST_SHARE = 1e-4  # of the median: a row of no spread at all by chance, or by a coarse clock
_LEAST_DEGREES = 0.2
_TINY = 1e-24


def shrunk(variances: Floats, degrees: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the shrunk variance of each row, above 0, and its degrees of freedom.

    degrees: of each variance; 0 where a row shows none. No row gets more degrees than all have together.
    """
    has_variance = degrees > _LEAST_DEGREES
    if not has_variance.any():
        return np.full(len(variances), _TINY), np.zeros(len(variances))
    least = max(_LEAST_SHARE * float(np.median(variances[has_variance])), _TINY)
    scale, prior = _prior(np.maximum(variances[has_variance], least), degrees[has_variance])
    total = float(degrees.sum())
    if math.isinf(prior):
        return np.full(len(variances), scale), np.full(len(variances), total)
    row_degrees = np.where(has_variance, degrees, 0.0)
    pooled = (prior * scale + row_degrees * np.maximum(variances, least)) / (prior + row_degrees)
    # never below its own: quiet rows lend no precision to noisy ones
    return np.maximum(pooled, np.where(has_variance, variances, 0.0)), np.minimum(prior + row_degrees, total)


def _prior(variances: Floats, degrees: Floats) -> tuple[float, float]:
    """Return scale and degrees of freedom of what the variances have in common; infinite for one variance."""
    pooled = float((variances * degrees).sum() / degrees.sum())
    if len(variances) < _LEAST_ROWS:
        return pooled, math.inf
    half = degrees / 2
    logs = np.log(variances) - digamma(half) + np.log(half)
    beyond = float(logs.var(ddof=1) - polygamma(1, half).mean())  # what chance alone does not explain
    if beyond <= 0:
        return pooled, math.inf
    prior = _inverse_trigamma(beyond)
    return math.exp(float(logs.mean()) + float(digamma(prior)) - math.log(prior)), 2 * prior


def _inverse_trigamma(value: float) -> float:
    """Return y with trigamma(y) = value, by Newton's method on its reciprocal, which is nearly linear."""
    y = 0.5 + 1 / value
    for _ in range(50):
        current = float(polygamma(1, y))
        step = current * (1 - current / value) / float(polygamma(2, y))
        y += step
        if -step < 1e-8 * y:
            break
    return y
