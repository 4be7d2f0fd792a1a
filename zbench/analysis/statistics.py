"""Estimates and tests for ratios of step times; pure functions on logarithms.

One value is one fresh process, summarised by its median step; its logarithm enters here. A difference of
logarithms is `log(head / base)`: positive is slower. The margin is the change one is willing to accept, as
a logarithm too. Each claim of a regression rests on two tests that fail in different ways: Student's t, which
uses the size of the differences, and an exact one (sign flips where samples are paired, ranks where not),
which assumes no distribution at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Floats = NDArray[np.float64]

MAX_EXACT_PAIRS = 40
"""Sign flips are enumerated in two halves, 2**20 sums each; more pairs than this are never needed here."""

_ROUNDING = 1e-9
"""Sums of the same terms in another order differ by rounding; closer than this relative step is a tie."""


@dataclass(frozen=True, slots=True)
class Estimate:
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

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the bounds that the true log-ratio passes with probability `alpha` on each side."""
        half = self.half_width(alpha)
        return self.log_ratio - half, self.log_ratio + half

    def half_width(self, alpha: float) -> float:
        """Return half the width of `interval(alpha)`; infinite where the spread is unknown."""
        if self.degrees <= 0:
            return math.inf
        return self.standard_error * -float(stdtrit(self.degrees, alpha))

    def p_above(self, margin: float) -> float:
        """Return the one-sided p-value of Student's t for `log_ratio <= margin`."""
        if self.degrees <= 0:
            return 1.0
        if self.standard_error == 0:
            return 0.0 if self.log_ratio > margin else 1.0
        return float(stdtr(self.degrees, (margin - self.log_ratio) / self.standard_error))


def paired_estimate(differences: Sequence[float]) -> Estimate:
    """Return the mean of differences `log(head) - log(base)`, one a pair or block, with its t error."""
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return Estimate(float(values.mean()), error, n - 1, n, n, paired=True)


def unpaired_estimate(base: Sequence[float], head: Sequence[float], run_noise: float = 0.0) -> Estimate:
    """Return Welch's estimate from the logarithms of two independent groups of processes.

    Two runs at two times also differ by what the machine did meanwhile, which no number of repeats inside a
    run can show. `run_noise` is the standard deviation of that shift per run (as a logarithm); it is added to
    the error as known, so the degrees of freedom follow Welch and Satterthwaite with a term that has none.
    """
    a, b = np.asarray(base, dtype=np.float64), np.asarray(head, dtype=np.float64)
    ratio = float(b.mean() - a.mean())
    if min(len(a), len(b)) < 2:
        return Estimate(ratio, math.inf, 0.0, len(a), len(b), paired=False)
    share_a, share_b = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    floor = math.sqrt(2) * run_noise
    variance = share_a + share_b + floor**2
    spread = share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1)
    degrees = variance**2 / spread if spread > 0 else float(len(a) + len(b) - 2)
    return Estimate(ratio, math.sqrt(variance), degrees, len(a), len(b), paired=False, floor=floor)


def sign_flip_p(differences: Sequence[float], margin: float = 0.0) -> float:
    """Return the exact one-sided p-value that the differences centre at or below `margin`.

    Under that hypothesis and symmetry each `difference - margin` is as likely with either sign, so
    the p-value is the share of the 2**n sign patterns whose sum is at least the observed one. Both halves of
    the pattern are enumerated and joined by a search: exact up to 40 pairs; beyond, ValueError.
    """
    values = np.asarray(differences, dtype=np.float64) - margin
    if len(values) > MAX_EXACT_PAIRS:
        raise ValueError(f"expected at most {MAX_EXACT_PAIRS} pairs, got {len(values)}")
    tolerance = _ROUNDING * float(np.abs(values).sum())
    left, right = _signed_sums(values[::2]), np.sort(_signed_sums(values[1::2]))
    reached = np.searchsorted(right, values.sum() - tolerance - left, side="left")
    return float((len(right) - reached).sum()) / 2.0 ** len(values)


def _signed_sums(values: Floats) -> Floats:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums - value, sums + value))
    return sums


def rank_sum_p(base: Sequence[float], head: Sequence[float], margin: float = 0.0) -> float:
    """Return the exact one-sided Mann-Whitney p-value that `head` lies at most `margin` above `base`.

    A tie counts for the hypothesis, so that clocks of coarse resolution never raise an alarm.
    """
    a, b = np.asarray(base, dtype=np.float64) + margin, np.asarray(head, dtype=np.float64)
    wins = int((b[:, None] > a[None, :]).sum())
    return float(_rank_sum_tail(len(a), len(b))[wins])


@cache
def _rank_sum_tail(n_base: int, n_head: int) -> Floats:
    """Return P(wins >= w) for w = 0 .. n_base * n_head, where every order of all values is equally likely.

    `counts[k, w]` grows by one value at a time: a head value placed after j base values adds j wins.
    """
    size = n_base * n_head + 1
    counts = np.zeros((n_head + 1, size))
    counts[0, 0] = 1
    for j in range(n_base + 1):
        for k in range(1, n_head + 1):  # ascending: any number of head values may follow the j-th base value
            counts[k, j:] += counts[k - 1, : size - j]
    weights = counts[n_head]
    return np.asarray(weights[::-1].cumsum()[::-1] / weights.sum(), dtype=np.float64)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's step-down method, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def minimal_pairs(alpha: float, comparisons: int) -> int:
    """Return the fewest pairs with which a sign-flip test can reach `alpha` in a family of `comparisons`."""
    return max(2, math.ceil(math.log2(comparisons / alpha) - _ROUNDING))


def minimal_repeats(alpha: float, comparisons: int) -> int:
    """Return the fewest processes a side with which a rank test can reach `alpha` in a family."""
    n = 2
    while 1 / math.comb(2 * n, n) > alpha / comparisons:
        n += 1
    return n


def can_reach(estimate: Estimate, alpha: float, comparisons: int) -> bool:
    """Say whether so many processes could show a regression at all."""
    if estimate.paired:
        return estimate.n_base >= minimal_pairs(alpha, comparisons)
    total = estimate.n_base + estimate.n_head
    return min(estimate.n_base, estimate.n_head) >= 2 and (
        1 / math.comb(total, estimate.n_base) <= alpha / comparisons
    )
