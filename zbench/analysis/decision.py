"""Three answers for a family of comparisons: regression, pass or inconclusive.

Errors are held where they hurt. An alarm from any comparison fails the build, so alarms share one `alpha` by
Holm's method. A build passes only if every comparison passes, so each `pass` needs no correction (an
intersection-union test). Whatever is neither is said to be inconclusive, with the number of processes that
would settle it.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from scipy.special import stdtrit

from zbench.analysis import statistics
from zbench.analysis.statistics import Estimate

Answer = Literal["regression", "pass", "inconclusive"]

POWER = 0.8
"""`needed` is the number of processes that would settle the question with this probability."""

_MOST_NEEDED = 1000


class Evidence(Protocol):
    """Samples of one comparison, as logarithms."""

    def estimate(self) -> Estimate:
        """Return the mean log-ratio and its error."""

    def exact_p(self, margin: float) -> float:
        """Return the p-value of the distribution-free test that the ratio is at most `margin`."""


@dataclass(frozen=True, slots=True)
class Paired:
    """One `log(head / base)` a pair or block, measured side by side."""

    differences: tuple[float, ...]

    def estimate(self) -> Estimate:
        """Return the mean difference with its t error."""
        return statistics.paired_estimate(self.differences)

    def exact_p(self, margin: float) -> float:
        """Return the p-value of the sign-flip test."""
        return statistics.sign_flip_p(self.differences, margin)


@dataclass(frozen=True, slots=True)
class Unpaired:
    """Logarithms of two runs made at two times; `run_noise` is the machine's shift between runs."""

    base: tuple[float, ...]
    head: tuple[float, ...]
    run_noise: float = 0.0

    def estimate(self) -> Estimate:
        """Return Welch's estimate."""
        return statistics.unpaired_estimate(self.base, self.head, self.run_noise)

    def exact_p(self, margin: float) -> float:
        """Return the p-value of the rank test."""
        return statistics.rank_sum_p(self.base, self.head, margin)


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one comparison. `log_ratio`, `low`, `high` and `margin` are logarithms.

    `p_value` is adjusted for the family. `needed` is the number of processes a side (or blocks) that would
    settle an inconclusive answer, None where no number would or none is needed.
    """

    answer: Answer
    log_ratio: float
    low: float
    high: float
    margin: float
    p_value: float
    n_base: int
    n_head: int
    paired: bool
    needed: int | None = None
    reason: str = ""

    @property
    def change(self) -> float:
        """Return the estimated change as a fraction: 0.05 is 5 % slower."""
        return math.expm1(self.log_ratio)

    @property
    def faster(self) -> bool:
        """Say whether the whole interval lies below no change."""
        return self.high < 0


def decide(family: Mapping[str, tuple[Evidence, float]], alpha: float) -> dict[str, Decision]:
    """Decide every comparison of a family, each an (evidence, margin) under its name.

    `alpha` is the one-sided error: of any false alarm in the family, and of each false pass.
    """
    estimates = {name: evidence.estimate() for name, (evidence, _) in family.items()}
    p_values = {
        name: _alarm_p(evidence, estimates[name], margin, alpha)
        for name, (evidence, margin) in family.items()
    }
    adjusted = dict(zip(p_values, statistics.holm(list(p_values.values())), strict=True))
    return {
        name: _answer(estimates[name], margin, alpha, len(family), adjusted[name])
        for name, (_, margin) in family.items()
    }


def _alarm_p(evidence: Evidence, estimate: Estimate, margin: float, alpha: float) -> float:
    """Return the larger p-value of both tests; the exact one is worth its time only where t alarms."""
    p = estimate.p_above(margin)
    return p if p > alpha else max(p, evidence.exact_p(margin))


def _answer(estimate: Estimate, margin: float, alpha: float, comparisons: int, p_value: float) -> Decision:
    low, high = estimate.interval(alpha)
    answer: Answer = "inconclusive"
    if low > margin and p_value <= alpha:
        answer = "regression"
    elif high <= margin:
        answer = "pass"
    needed, reason = None, ""
    if answer == "inconclusive":
        needed = needed_n(estimate, margin, alpha, comparisons)
        reason = _why(estimate, alpha, comparisons, needed)
    return Decision(
        answer, estimate.log_ratio, low, high, margin, p_value,
        estimate.n_base, estimate.n_head, estimate.paired, needed, reason,
    )  # fmt: skip


def _why(estimate: Estimate, alpha: float, comparisons: int, needed: int | None) -> str:
    unit = "blocks" if estimate.paired else "processes a side"
    n = min(estimate.n_base, estimate.n_head)
    if not statistics.can_reach(estimate, alpha, comparisons):
        least = (statistics.minimal_pairs if estimate.paired else statistics.minimal_repeats)(
            alpha, comparisons
        )
        family = f"alpha {alpha:g} over {comparisons} comparisons"
        return f"{n} {unit} cannot reach {family}; at least {least} are needed"
    if needed is None and estimate.floor > estimate.standard_error / 2:
        return "the machine's noise between runs hides it; --paired would tell"
    if needed is None:
        return f"the effect lies too near the margin for any reasonable number of {unit}"
    return f"about {needed} {unit} would decide"


def needed_n(estimate: Estimate, margin: float, alpha: float, comparisons: int) -> int | None:
    """Return how many pairs, or processes a side, would decide with power 0.8 at this effect and spread.

    None where more than 1,000 would be needed, or where nothing is known of the spread.
    """
    n = min(estimate.n_base, estimate.n_head)
    if estimate.paired:
        least, groups = statistics.minimal_pairs(alpha, comparisons), 1
    else:
        least, groups = statistics.minimal_repeats(alpha, comparisons), 2
    if estimate.degrees <= 0 or n < 2:
        return least
    distance = abs(estimate.log_ratio - margin)
    level = alpha / comparisons if estimate.log_ratio > margin else alpha
    spread = (estimate.standard_error**2 - estimate.floor**2) * n

    def decides(wanted: int) -> bool:
        degrees = groups * (wanted - 1)
        quantiles = -float(stdtrit(degrees, level)) + float(stdtrit(degrees, POWER))
        return distance >= quantiles * math.sqrt(spread / wanted + estimate.floor**2)

    counts = range(max(least, 3), _MOST_NEEDED + 1)
    found = bisect.bisect_left(counts, True, key=decides)  # more processes only narrow the interval
    return counts[found] if found < len(counts) else None


def precise_enough(family: Sequence[Evidence], alpha: float, precision: float) -> bool:
    """Say whether every half width is at most `precision` (a logarithm): the only reason to stop early.

    It looks at the widths, never at where the intervals lie, so looking often raises no false alarm.
    """
    return all(evidence.estimate().half_width(alpha) <= precision for evidence in family)


def confirmed(first: Mapping[str, Decision], fresh: Mapping[str, Decision]) -> dict[str, Decision]:
    """Return the final decisions: an alarm stands only if fresh data of the alarmed rows raise it again.

    `fresh` is decided from new samples alone, as a family of its own, for exactly the alarmed names.
    """
    final = dict(first)
    for name, decision in first.items():
        if decision.answer != "regression":
            continue
        again = fresh[name]
        note = (
            "confirmed on fresh data" if again.answer == "regression" else "alarm not confirmed on fresh data"
        )
        final[name] = replace(again, reason=f"{note}; first {decision.change:+.1%}" + _joined(again.reason))
    return final


def _joined(reason: str) -> str:
    return f"; {reason}" if reason else ""
