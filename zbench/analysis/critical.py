"""Dunnett's critical value: how far one of several means must lie from the best to be told from it. Pure."""

import math
from functools import cache

import numpy as np
from scipy.special import gammaln, ndtr

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
