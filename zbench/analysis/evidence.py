"""What a decision rests on: the samples of one comparison, and what is known of the noise between runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zbench.analysis import statistics
from zbench.analysis.statistics import RatioEstimate

UNKNOWN_SHIFT = math.log(1.5)
"""How far two runs may lie apart for reasons outside of both, where nothing is known of that: 50 %."""

CLEAR_SPREADS = 8
"""Few processes show a slowdown only beyond this many of their pooled standard deviations (and 50 %)."""

LEAST_HISTORY = 10
"""Runs from which the noise between runs can be told, at least."""


@dataclass(frozen=True, slots=True)
class RunNoise:
    """How far runs of one version lie apart: a standard deviation of logarithms, and what it rests on.

    degrees: degrees of freedom of an estimate from earlier runs, which holds their own repeats' noise too;
    infinite where the user gave the figure, which is then the shift between runs alone.
    """

    spread: float
    degrees: float = math.inf


class Evidence(Protocol):
    """Samples of one comparison, as logarithms."""

    def estimate(self) -> RatioEstimate:
        """Return the mean log-ratio and its error."""

    def exact_p(self, margin: float) -> float:
        """Return the p-value of the distribution-free test that the ratio is at most `margin`."""

    def clear_margin(self, alpha: float) -> float:
        """Return what a slowdown must exceed besides where too few samples allow no exact test; else 0."""

    def reversed(self) -> "Evidence":
        """Return the same evidence with base and head exchanged."""


@dataclass(frozen=True, slots=True)
class Paired:
    """One `log(head / base)` a pair or block, measured side by side; `replicates` as in `paired_estimate`."""

    differences: tuple[float, ...]
    replicates: tuple[float, ...] = ()

    def estimate(self) -> RatioEstimate:
        """Return the mean difference with its t error."""
        return statistics.paired_estimate(self.differences, self.replicates)

    def exact_p(self, margin: float) -> float:
        """Return the p-value of the sign-flip test."""
        return statistics.sign_flip_p(self.differences, margin)

    def clear_margin(self, alpha: float) -> float:
        """Return 0: a paired measurement has as many blocks as its exact test needs."""
        return 0.0

    def reversed(self) -> "Paired":
        """Return the differences with the other sign."""
        return Paired(tuple(-value for value in self.differences), self.replicates)


@dataclass(frozen=True, slots=True)
class Unpaired:
    """Logarithms of two runs made at two times; `run_noise` is None where nothing is known of it."""

    base: tuple[float, ...]
    head: tuple[float, ...]
    run_noise: RunNoise | None = None

    def estimate(self) -> RatioEstimate:
        """Return Welch's estimate, widened by what is known of the noise between runs.

        With a history the run is the unit: the difference of two run means has twice the variance of such
        means, and Student's t has the history's degrees of freedom. Welch's own error counts where larger.
        """
        noise = self.run_noise
        if noise is None:
            return self._welch(0.0, UNKNOWN_SHIFT)
        if math.isinf(noise.degrees):
            return self._welch(noise.spread, 0.0)
        welch, error = self._welch(0.0, 0.0), math.sqrt(2) * noise.spread
        if welch.standard_error > error and math.isfinite(welch.standard_error):
            return welch
        counts = welch.n_base, welch.n_head
        return RatioEstimate(welch.log_ratio, error, noise.degrees, *counts, paired=False, floor=error)

    def exact_p(self, margin: float) -> float:
        """Return the p-value of the rank test."""
        return statistics.rank_sum_p(self.base, self.head, margin)

    def clear_margin(self, alpha: float) -> float:
        """Return the larger of 8 pooled standard deviations and 50 % where ranks cannot reach `alpha`."""
        if statistics.ranks_can_reach(len(self.base), len(self.head), alpha):
            return 0.0
        return max(CLEAR_SPREADS * statistics.pooled_spread(self.base, self.head), UNKNOWN_SHIFT)

    def reversed(self) -> "Unpaired":
        """Return the comparison of base against head."""
        return Unpaired(self.head, self.base, self.run_noise)

    def _welch(self, spread: float, allowance: float) -> RatioEstimate:
        found = statistics.unpaired_estimate(self.base, self.head, spread)
        if not allowance:
            return found
        return RatioEstimate(
            found.log_ratio, found.standard_error, found.degrees, found.n_base, found.n_head,
            paired=False, floor=found.floor, allowance=allowance,
        )  # fmt: skip


def noise_of_runs(levels: Sequence[Sequence[float]]) -> RunNoise | None:
    """Return the noise between runs from earlier run means (logarithms), grouped by level; None for too few.

    levels: the runs between two changes of the code's speed belong together; spread is about each group's
    own mean. At least 10 runs in all, each group's mean costing a degree of freedom.
    """
    groups = [group for group in levels if len(group) > 1]
    if sum(len(group) for group in levels) < LEAST_HISTORY or not groups:
        return None
    means = [math.fsum(group) / len(group) for group in groups]
    squares = sum((x - mean) ** 2 for group, mean in zip(groups, means, strict=True) for x in group)
    degrees = sum(len(group) - 1 for group in groups)
    return RunNoise(math.sqrt(squares / degrees), degrees)
