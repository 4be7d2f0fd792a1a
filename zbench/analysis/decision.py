"""The answers for a family of comparisons (regression, pass, suspected, inconclusive), and their evidence.

Evidence is the samples of one comparison and the noise between runs, if it is known. An alarm from any
comparison fails the build, so all alarms share one `alpha` by Holm's method. A build passes only if every
comparison passes, so a `pass` needs no correction (an intersection-union test). All other answers are
inconclusive, with the number of processes that would decide them. If the samples differ significantly and by
more than the margin, but unknown noise between runs may be the reason, the answer is `suspected`. "Faster" is
decided by the tests for "slower", with the sides exchanged.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, Protocol

from scipy.special import ndtri

from zbench.analysis import statistics
from zbench.analysis.statistics import RatioEstimate, Sides

UNKNOWN_SHIFT = math.log(1.5)
"""Assumed difference of two runs by the machine alone, if the noise between runs is unknown: 50 %."""

CLEAR_SPREADS = 8
"""A slowdown of few processes counts beyond this many of their pooled standard deviations (and 50 %)."""

LEAST_HISTORY = 10
"""Least number of runs to estimate the noise between runs from."""


@dataclass(frozen=True, slots=True)
class RunNoise:
    """The noise between runs of one version: a standard deviation of logarithms, and its origin.

    degrees: degrees of freedom of an estimate from earlier runs, which includes the noise of their repeats;
    infinite for a figure of the user's, which is the shift between runs alone.
    """

    spread: float
    degrees: float = math.inf


RESIDUAL = RunNoise(math.log1p(0.02) / float(ndtri(0.99)) / math.sqrt(2))
"""Error of the machine's yardstick: one pair of runs in 100 seems more than 2 % slower."""


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
        if noise is not None and math.isinf(noise.degrees):
            return statistics.unpaired_estimate(self.base, self.head, noise.spread)
        welch = statistics.unpaired_estimate(self.base, self.head)
        if noise is None:
            return replace(welch, allowance=UNKNOWN_SHIFT)
        error = math.sqrt(2) * noise.spread
        if welch.standard_error > error and math.isfinite(welch.standard_error):
            return replace(welch, floor=error)
        return replace(welch, standard_error=error, degrees=noise.degrees, floor=error)

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
        return replace(self, base=self.head, head=self.base)


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


Answer = Literal["regression", "suspected", "pass", "inconclusive"]
Family = Mapping[str, tuple[Evidence, float]]
"""Name -> its evidence and its margin (a logarithm)."""

POWER = 0.8
"""`needed` is the number of processes that would settle the question with this probability."""

DETECTED = 0.9
"""`detectable` is the change that would have been called a regression with this probability."""

_MOST_NEEDED = 1000


@dataclass(frozen=True, slots=True)
class Levels:
    """One-sided error rates of one look at the data: of any alarm, of each pass, and of each exact test."""

    alarm: float
    passing: float
    exact: float

    @classmethod
    def single(cls, alpha: float) -> "Levels":
        """Return the levels where the data is looked at once."""
        return cls(alpha, alpha, alpha)


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one comparison. `log_ratio`, `low`, `high` and `margin` are logarithms.

    `p_value` is adjusted for the family. `needed` is the number of processes a side (or blocks) that would
    settle an inconclusive answer, None where no number would or none is needed. `detectable` is the slowdown
    (a logarithm) that would have been called nine times in ten at the measured noise, None if unknown.
    `faster` is claimed like a regression, with the sides exchanged.
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
    faster: bool = False
    detectable: float | None = None

    @property
    def change(self) -> float:
        """Return the estimated change as a fraction: 0.05 is 5 % slower."""
        return math.expm1(self.log_ratio)

    def __str__(self) -> str:
        """Return the change with its interval, the answer, and the reason if it is undecided."""
        low, change, high = (math.expm1(value) for value in (self.low, self.log_ratio, self.high))
        why = f": {self.reason}" if self.reason else ""
        interval = "within more than a factor of 10" if self.is_wide else f"{low:+.1%} to {high:+.1%}"
        return f"{change:+.1%} ({interval}), {self.answer}{why}"

    @property
    def is_wide(self) -> bool:
        """Whether the interval reaches beyond a factor of 10, where a percentage is meaningless."""
        return max(abs(self.low), abs(self.high)) > math.log(10)

    @property
    def is_decided(self) -> bool:
        """Whether the answer is final: more samples cannot change it."""
        return self.answer in ("regression", "pass")


def decide(
    family: Family, levels: Levels, before: Mapping[str, Decision] | None = None
) -> dict[str, Decision]:
    """Decide every comparison of a family, each an (evidence, margin) under its name.

    before: the decisions of the look before; what was decided then stays, and an alarm of then counts in
    Holm's method as the first step taken.
    """
    settled = {name: one for name, one in (before or {}).items() if one.is_decided}
    alarms = {name for name, one in settled.items() if one.answer == "regression"}
    slower = _adjusted({n: 0.0 if n in alarms else claim_p(e, m, levels) for n, (e, m) in family.items()})
    faster = _adjusted({name: claim_p(e.reversed(), m, levels) for name, (e, m) in family.items()})
    apart = _adjusted({name: evidence.estimate().p_any() for name, (evidence, _) in family.items()})
    decisions = dict(settled)
    for name, (evidence, margin) in family.items():
        if name not in settled:
            p_values = (slower[name], faster[name], apart[name])
            decisions[name] = _answer(evidence, margin, levels, len(family), p_values)
    return {name: decisions[name] for name in family}


def claim_p(evidence: Evidence, margin: float, levels: Levels) -> float:
    """Return the p-value of "slower by more than the margin": 1 where the exact test does not agree."""
    estimate = evidence.estimate()
    p = estimate.p_above(margin)
    if p > levels.alarm:
        return p
    clear = evidence.clear_margin(levels.exact)
    if clear:
        return p if estimate.log_ratio > margin + clear else 1.0
    return p if evidence.exact_p(margin) <= levels.exact else 1.0


def _adjusted(p_values: Mapping[str, float]) -> dict[str, float]:
    return dict(zip(p_values, statistics.holm(list(p_values.values())), strict=True))


def _answer(
    evidence: Evidence, margin: float, levels: Levels, comparisons: int, p_values: tuple[float, float, float]
) -> Decision:
    """Return the decision; p_values: of slower, of faster and of any difference, adjusted for the family."""
    slower, faster, apart = p_values
    estimate = evidence.estimate()
    low, high = estimate.interval(levels.passing)
    answer: Answer = "inconclusive"
    if slower <= levels.alarm:
        answer = "regression"
    elif high <= margin:
        answer = "pass"
    elif estimate.log_ratio > margin and apart <= levels.alarm:
        answer = "suspected"
    needed, reason = None, ""
    if answer in ("inconclusive", "suspected"):
        needed = needed_n(estimate, margin, levels, comparisons)
        reason = _why(estimate, levels, needed)
    return Decision(
        answer, estimate.log_ratio, low, high, margin, slower,
        estimate.n_base, estimate.n_head, estimate.paired, needed, reason,
        faster=answer == "pass" and faster <= levels.alarm,
        detectable=_detectable(estimate, margin, levels.alarm / comparisons),
    )  # fmt: skip


def doubted(decision: Decision, reason: str) -> Decision:
    """Return an inconclusive decision for samples that cannot be trusted, with the reason."""
    shown = decision.answer in ("regression", "suspected")
    answer: Answer = "suspected" if shown else "inconclusive"
    return replace(decision, answer=answer, faster=False, needed=None, reason=reason)


def over_part(own: Sides, part: Sides) -> Unpaired:
    """Return two stored runs' times over a part of the yardstick, by the share of it that they may follow."""
    share = statistics.share_followed(own, part)
    sides = [tuple(t - share * p for t, p in zip(*logs, strict=True)) for logs in zip(own, part, strict=True)]
    return Unpaired(sides[0], sides[1], RESIDUAL)


def decide_over(parts: Mapping[str, Family], levels: Levels) -> dict[str, Decision]:
    """Decide a family over each part of a yardstick and by plain time; an answer needs all to agree."""
    by_part = {part: decide(family, levels) for part, family in parts.items()}
    names = next(iter(parts.values()))
    return {name: _agreed({part: found[name] for part, found in by_part.items()}) for name in names}


def _agreed(parts: Mapping[str, Decision]) -> Decision:
    """Return the decision that all parts agree on, else an inconclusive one that names the disagreement.

    The change is the middle one, and the interval contains those of all parts.
    """
    ones = list(parts.values())
    least_sure = max(ones, key=lambda one: (not one.is_decided, one.high - one.low))
    answer, reason = least_sure.answer, least_sure.reason
    names = {own.answer: [part for part, one in parts.items() if one.answer == own.answer] for own in ones}
    if len(names) > 1:
        says = ", ".join(f"{said} by {' and '.join(those)}" for said, those in names.items())
        reason = "; ".join(filter(None, [f"the machine's yardstick does not decide: {says}", reason]))
        answer = "suspected" if {"regression", "suspected"} & names.keys() else "inconclusive"
    return replace(
        least_sure, answer=answer, reason=reason,
        log_ratio=median([one.log_ratio for one in ones]),
        low=min(one.low for one in ones), high=max(one.high for one in ones),
        p_value=max(one.p_value for one in ones), faster=all(one.faster for one in ones),
        detectable=max((one.detectable for one in ones if one.detectable is not None), default=None),
    )  # fmt: skip


def _detectable(estimate: RatioEstimate, margin: float, level: float) -> float | None:
    if not estimate.has_spread:
        return None
    errors = statistics.reach(estimate.degrees, level, DETECTED)
    return margin + estimate.allowance + errors * estimate.standard_error


def _why(estimate: RatioEstimate, levels: Levels, needed: int | None) -> str:
    unit = "blocks" if estimate.paired else "processes a side"
    n = min(estimate.n_base, estimate.n_head)
    if estimate.allowance:
        return (
            "the noise between runs is unknown, so a change below 50 % stays undecided; run the sweep here "
            "10 times to measure the noise, give it as --run-noise, or use --paired"
        )
    if not statistics.can_reach(estimate, levels.exact):
        least = (statistics.minimal_pairs if estimate.paired else statistics.minimal_repeats)(levels.exact)
        remedy = "" if estimate.paired else f": zbench sweep --resume RUN --repeats {needed or least}"
        return f"{n} {unit} cannot reach alpha {levels.exact:g}; at least {least} are needed{remedy}"
    if needed is None and estimate.floor > estimate.standard_error / 2:
        return "it is within the machine's noise between runs; use --paired"
    if needed is None:
        return f"the change is too near the margin to decide with any reasonable number of {unit}"
    remedy = "" if estimate.paired else f": zbench sweep --resume RUN --repeats {needed}"
    return f"about {needed} {unit} would decide{remedy}"


def needed_n(estimate: RatioEstimate, margin: float, levels: Levels, comparisons: int) -> int | None:
    """Return how many pairs, or processes a side, would decide with power 0.8 at this effect and spread.

    None where more than 1,000 would be needed. Where nothing is known of the spread, it is the fewest
    with which the exact test can decide.
    """
    n = min(estimate.n_base, estimate.n_head)
    if estimate.paired:
        least, groups = statistics.minimal_pairs(levels.exact), 1
    else:
        least, groups = statistics.minimal_repeats(levels.exact), 2
    if not estimate.has_spread or n < 2:
        return least
    above = estimate.log_ratio > margin
    distance = abs(estimate.log_ratio - margin) - estimate.allowance
    level = levels.exact / comparisons if above else levels.exact
    spread = (estimate.standard_error**2 - estimate.floor**2) * n

    def decides(wanted: int) -> bool:
        errors = statistics.reach(groups * (wanted - 1), level, POWER)
        return distance >= errors * math.sqrt(spread / wanted + estimate.floor**2)

    counts = range(least, _MOST_NEEDED + 1)
    index = bisect.bisect_left(counts, True, key=decides)  # more processes only narrow the interval
    return counts[index] if index < len(counts) else None
