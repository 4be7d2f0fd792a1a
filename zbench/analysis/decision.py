"""The answers for a family of comparisons: regression, pass, suspected or inconclusive.

Errors are held where they hurt. An alarm from any comparison fails the build, so alarms share one `alpha` by
Holm's method. A build passes only if every comparison passes, so each `pass` needs no correction (an
intersection-union test). What is neither is inconclusive, with the number of processes that would settle it;
where the samples differ for sure and by more than the margin, but noise that they cannot show may be the
reason, it is `suspected`. "Faster" is claimed by the tests that claim "slower", with the sides exchanged.
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from scipy.special import stdtrit

from zbench.analysis import statistics
from zbench.analysis.evidence import Evidence
from zbench.analysis.statistics import RatioEstimate

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
        """Return the change with its interval, the answer, and why there is none."""
        low, change, high = (math.expm1(value) for value in (self.low, self.log_ratio, self.high))
        why = f": {self.reason}" if self.reason else ""
        return f"{change:+.1%} ({low:+.1%} to {high:+.1%}), {self.answer}{why}"

    @property
    def is_decided(self) -> bool:
        """Say whether more samples could not change the answer."""
        return self.answer in ("regression", "pass")


def decide(
    family: Family, levels: Levels, before: Mapping[str, Decision] | None = None
) -> dict[str, Decision]:
    """Decide every comparison of a family, each an (evidence, margin) under its name.

    before: the decisions of the look before; what was decided then stays, and an alarm of then counts in
    Holm's method as the first step taken.
    """
    settled = {name: found for name, found in (before or {}).items() if found.is_decided}
    alarms = {name for name, found in settled.items() if found.answer == "regression"}
    slower = _adjusted({n: 0.0 if n in alarms else claim_p(e, m, levels) for n, (e, m) in family.items()})
    faster = _adjusted({name: claim_p(e.reversed(), m, levels) for name, (e, m) in family.items()})
    apart = _adjusted({name: evidence.estimate().p_any() for name, (evidence, _) in family.items()})
    found = dict(settled)
    for name, (evidence, margin) in family.items():
        if name not in settled:
            claims = _Claims(slower[name], faster[name], apart[name])
            found[name] = _answer(evidence, margin, levels, len(family), claims)
    return {name: found[name] for name in family}


@dataclass(frozen=True, slots=True)
class _Claims:
    """Family-adjusted p-values of what could be said of one comparison."""

    slower: float
    faster: float
    apart: float


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


def _answer(evidence: Evidence, margin: float, levels: Levels, comparisons: int, claims: _Claims) -> Decision:
    estimate = evidence.estimate()
    low, high = estimate.interval(levels.passing)
    answer: Answer = "inconclusive"
    if claims.slower <= levels.alarm:
        answer = "regression"
    elif high <= margin:
        answer = "pass"
    elif estimate.log_ratio > margin and claims.apart <= levels.alarm:
        answer = "suspected"
    needed, reason = None, ""
    if answer in ("inconclusive", "suspected"):
        needed = needed_n(estimate, margin, levels, comparisons)
        reason = _why(estimate, levels, needed)
    return Decision(
        answer, estimate.log_ratio, low, high, margin, claims.slower,
        estimate.n_base, estimate.n_head, estimate.paired, needed, reason,
        faster=answer == "pass" and claims.faster <= levels.alarm,
        detectable=_detectable(estimate, margin, levels.alarm / comparisons),
    )  # fmt: skip


def doubted(decision: Decision, reason: str) -> Decision:
    """Return the decision where the samples cannot be trusted: nothing is claimed of them, for `reason`."""
    shown = decision.answer in ("regression", "suspected")
    answer: Answer = "suspected" if shown else "inconclusive"
    return replace(decision, answer=answer, faster=False, needed=None, reason=reason)


def _detectable(estimate: RatioEstimate, margin: float, level: float) -> float | None:
    if not estimate.has_spread:
        return None
    quantiles = -float(stdtrit(estimate.degrees, level)) + float(stdtrit(estimate.degrees, DETECTED))
    return margin + estimate.allowance + quantiles * estimate.standard_error


def _why(estimate: RatioEstimate, levels: Levels, needed: int | None) -> str:
    unit = "blocks" if estimate.paired else "processes a side"
    n = min(estimate.n_base, estimate.n_head)
    if estimate.allowance:
        return (
            "two runs cannot show the noise between runs, so less than 50 % is not told apart; "
            "10 earlier runs of the sweep here would show it, --run-noise states it, --paired needs neither"
        )
    if not statistics.can_reach(estimate, levels.exact):
        least = (statistics.minimal_pairs if estimate.paired else statistics.minimal_repeats)(levels.exact)
        remedy = "" if estimate.paired else f": zbench sweep --resume RUN --repeats {needed or least}"
        return f"{n} {unit} cannot reach alpha {levels.exact:g}; at least {least} are needed{remedy}"
    if needed is None and estimate.floor > estimate.standard_error / 2:
        return "the machine's noise between runs hides it; --paired would tell"
    if needed is None:
        return f"the effect lies too near the margin for any reasonable number of {unit}"
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
        degrees = groups * (wanted - 1)
        quantiles = -float(stdtrit(degrees, level)) + float(stdtrit(degrees, POWER))
        return distance >= quantiles * math.sqrt(spread / wanted + estimate.floor**2)

    counts = range(least, _MOST_NEEDED + 1)
    found = bisect.bisect_left(counts, True, key=decides)  # more processes only narrow the interval
    return counts[found] if found < len(counts) else None
