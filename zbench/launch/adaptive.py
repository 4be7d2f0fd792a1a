"""Whether a configuration has been measured often enough. Pure functions."""

import math
from collections.abc import Sequence

_TAIL = 0.025  # a 95 % interval
MIN_REPEATS = 3
"""With fewer repeats the spread itself is unknown."""


def relative_half_width(medians: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the typical median step time, as a share of it.

    medians: the median step time of each repeat, in seconds. Student's t on their logarithms: repeats are
    few, and the noise of step times is multiplicative. Infinite for fewer than two repeats.
    """
    from scipy.special import stdtrit  # slow to import, and most sweeps have a fixed number of repeats

    count = len(medians)
    if count < 2:
        return math.inf
    logs = [math.log(value) for value in medians]
    mean = math.fsum(logs) / count
    variance = math.fsum((value - mean) ** 2 for value in logs) / (count - 1)
    return math.expm1(float(-stdtrit(count - 1, _TAIL)) * math.sqrt(variance / count))


def needs_another(medians: Sequence[float], *, precision: float | None, max_repeats: int) -> bool:
    """Whether one more repeat is worth its time: the interval is still wider than `precision`."""
    if precision is None or len(medians) >= max_repeats:
        return False
    return len(medians) < MIN_REPEATS or relative_half_width(medians) > precision
