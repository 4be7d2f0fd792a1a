"""Estimates and tests for ratios of step times; pure functions on logarithms.

One value is one fresh process, summarised by its mean step; its logarithm enters here. A difference of
logarithms is `log(head / base)`: positive is slower. The margin is the change one is willing to accept, as
a logarithm too. Claims rest on Student's t. Without a difference those of alike processes are symmetric,
whatever their distribution is, and for such values t errs on the safe side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtr, stdtr, stdtrit

Floats = NDArray[np.float64]
Sides = tuple[Sequence[float], Sequence[float]]
"""Logarithms of base and of head."""

_ALIKE = (0.01, 0.85)
"""Quantiles of F between which the spread within blocks and between blocks count as one."""


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """The mean of `log(head / base)`, its standard error, and the degrees of freedom of that error.

    `n_base` and `n_head` count processes; in a paired estimate both are the number of pairs (or blocks).
    `floor` is the part of the standard error that no number of processes reduces.
    """

    log_ratio: float
    standard_error: float
    degrees: float
    n_base: int
    n_head: int
    paired: bool
    floor: float = 0.0

    @property
    def has_spread(self) -> bool:
        """Say whether anything is known of the spread: one process alone shows none."""
        return self.degrees > 0

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the bounds that the true log-ratio passes with probability `alpha` on each side."""
        half = self.standard_error * -float(stdtrit(self.degrees, alpha)) if self.has_spread else math.inf
        return self.log_ratio - half, self.log_ratio + half

    def p_above(self, margin: float) -> float:
        """Return the one-sided p-value of Student's t for `log_ratio <= margin`."""
        distance = self.log_ratio - margin
        if not self.has_spread:
            return 1.0
        if self.standard_error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.degrees, -distance / self.standard_error))


def paired_estimate(differences: Sequence[float], replicates: Sequence[float] = ()) -> RatioEstimate:
    """Return the mean of differences `log(head) - log(base)`, one a block, with its t error.

    replicates: within each block, the difference of the logarithms of base's two processes, and of head's
    (`paired.block_replicates`), or what stands for both where pairs were taken in turns
    (`paired.replicates_in_turns`: one value a block, of the same variance).
    A block is a block of a randomised complete block design: the mean of two against the mean of two. Its
    error can be taken from the spread of `differences` (the interaction of side and block) or, where that
    is alike, together with the spread of replicates: one more degree of freedom for each. "Sometimes pooling"
    (Bancroft, "Analysis and inference for incompletely specified models", Biometrics 20, 1964): both are
    pooled where their ratio lies between the 1 % and the 85 % quantile of F. Above, the effect varies from
    block to block; below, the machine drifts within blocks, which cancels in the differences alone.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n < 2:
        return RatioEstimate(float(values.mean()), math.inf, 0, n, n, paired=True)
    variance, degrees = float(values.var(ddof=1)), n - 1
    if len(replicates):
        within, more = float(np.square(replicates).mean()) / 2, len(replicates)
        ratio = variance / within if within > 0 else math.inf
        if _ALIKE[0] < float(fdtr(degrees, more, ratio)) < _ALIKE[1]:
            variance = (degrees * variance + more * within) / (degrees + more)
            degrees += more
    return RatioEstimate(float(values.mean()), math.sqrt(variance / n), degrees, n, n, paired=True)


def unpaired_estimate(base: Sequence[float], head: Sequence[float], run_noise: float = 0.0) -> RatioEstimate:
    """Return Welch's estimate from the logarithms of two independent groups of processes.

    Two runs at two times also differ by what the machine did meanwhile, which no number of repeats inside a
    run can show. `run_noise` is the standard deviation of that shift per run (as a logarithm); it is added to
    the error as known, so the degrees of freedom follow Welch and Satterthwaite with a term that has none.
    """
    a, b = np.asarray(base, dtype=np.float64), np.asarray(head, dtype=np.float64)
    ratio = float(b.mean() - a.mean())
    if min(len(a), len(b)) < 2:
        return RatioEstimate(ratio, math.inf, 0.0, len(a), len(b), paired=False)
    share_a, share_b = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    floor = math.sqrt(2) * run_noise
    variance = share_a + share_b + floor**2
    spread = share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1)
    degrees = variance**2 / spread if spread > 0 else float(len(a) + len(b) - 2)
    return RatioEstimate(ratio, math.sqrt(variance), degrees, len(a), len(b), paired=False, floor=floor)


def share_followed(own: Sides, part: Sides) -> float:
    """Return which share of a yardstick's change the times of two runs follow at most: 0 to 1, at 95 %.

    own, part: base and head, a logarithm for each repeat. The bound is that of the slope of least squares of
    the repeats about the means of their runs. Where the runs' means of the part lie farther apart than these
    repeats do, something changed between the runs that no repeat shows: all of it may count, so 1.
    """
    times, paces = (
        np.concatenate([np.subtract(side, np.mean(side)) for side in both]) for both in (own, part)
    )
    if abs(np.mean(part[1]) - np.mean(part[0])) >= np.ptp(paces):
        return 1.0
    squares, degrees = float(paces @ paces), len(paces) - 3
    slope = float(times @ paces) / squares
    error = math.sqrt(float(np.square(times - slope * paces).sum()) / degrees / squares)
    return min(1.0, max(0.0, slope - error * float(stdtrit(degrees, 0.05))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's step-down method, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = list(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def reach(degrees: float, alpha: float, power: float) -> float:
    """Return how many standard errors beyond a bound a change is seen at `alpha` with this power."""
    return -float(stdtrit(degrees, alpha)) + float(stdtrit(degrees, power))
