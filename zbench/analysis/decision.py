"""The answers for a family of comparisons: regression, pass, suspected, inconclusive. Pure.

An alarm from any comparison fails the build, so all alarms share one `alpha` by Holm's method. A build
passes only if every comparison passes, so a `pass` needs no correction (an intersection-union test). All
other answers are inconclusive, with the number of processes that would decide them. If the samples differ
significantly and seem to differ by more than the margin, the answer is `suspected`. "Faster" is decided by
the test for "slower", with the sides exchanged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from zbench.analysis import reasons
from zbench.analysis.evidence import Evidence

Answer = Literal["regression", "suspected", "pass", "inconclusive"]
Family = Mapping[str, tuple[Evidence, float]]
"""Name -> its evidence and its margin (a logarithm)."""


def change_of(log_ratio: float) -> float:
    """Return a log ratio as a fraction, to 12 digits: what rounding leaves of equal times is 0."""
    return round(math.expm1(log_ratio), 12) + 0.0  # the sum makes -0.0 positive


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
        return change_of(self.log_ratio)

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


def decide(family: Family, level: float, before: Mapping[str, Decision] | None = None) -> dict[str, Decision]:
    """Decide every comparison of a family, each an (evidence, margin) under its name.

    level: the one-sided error rate of this look at the data: of any alarm, and of each pass.
    before: the decisions of the look before; what was decided then stays, and an alarm of then counts in
    Holm's method as the first step taken.
    """
    settled = {name: one for name, one in (before or {}).items() if one.is_decided}
    alarms = {name for name, one in settled.items() if one.answer == "regression"}
    slower = holm({n: 0.0 if n in alarms else e.contrast.p_above(m) for n, (e, m) in family.items()})
    faster = holm({name: (-one.contrast).p_above(margin) for name, (one, margin) in family.items()})
    apart = holm({name: one.contrast.p_above(0.0) for name, (one, _) in family.items()})
    decisions = dict(settled)
    for name, (evidence, margin) in family.items():
        if name not in settled:
            p_values = (slower[name], faster[name], apart[name])
            decisions[name] = _answer(evidence, margin, level, len(family), p_values)
    return {name: decisions[name] for name in family}


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted by Holm's step-down method."""
    highest, adjusted = 0.0, {}
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = highest
    return adjusted


def _answer(
    evidence: Evidence, margin: float, level: float, comparisons: int, p_values: tuple[float, float, float]
) -> Decision:
    """Return the decision; p_values: of slower, of faster and of any difference, adjusted for the family."""
    slower, faster, apart = p_values
    contrast = evidence.contrast
    low, high = contrast.interval(level)
    answer: Answer = "inconclusive"
    if slower <= level:
        answer = "regression"
    elif high <= margin:
        answer = "pass"
    elif contrast.value > margin and apart <= level:
        answer = "suspected"
    needed, reason = None, ""
    if answer in ("inconclusive", "suspected"):
        needed = reasons.needed_n(evidence, margin, level, comparisons)
        reason = reasons.reason(evidence, needed)
    return Decision(
        answer, contrast.value, low, high, margin, slower,
        evidence.n_base, evidence.n_head, evidence.paired, needed, reason,
        faster=answer == "pass" and faster <= level,
        detectable=reasons.detectable(contrast, margin, level / comparisons),
    )  # fmt: skip


def doubted(decision: Decision, reason: str) -> Decision:
    """Return an inconclusive decision for samples that cannot be trusted, with the reason."""
    shown = decision.answer in ("regression", "suspected")
    answer: Answer = "suspected" if shown else "inconclusive"
    return replace(decision, answer=answer, faster=False, needed=None, reason=reason)


def refused(decision: Decision, reason: str) -> Decision:
    """Return a decision that says nothing but why: the two runs cannot be compared by time."""
    return replace(decision, answer="inconclusive", faster=False, needed=None, detectable=None, reason=reason)


def decide_over(parts: Mapping[str, Family], level: float) -> dict[str, Decision]:
    """Decide a family over each part of a yardstick and by plain time; an answer needs all to agree."""
    by_part = {part: decide(family, level) for part, family in parts.items()}
    names = next(iter(parts.values()))
    return {name: _agreed({part: decisions[name] for part, decisions in by_part.items()}) for name in names}


def _agreed(parts: Mapping[str, Decision]) -> Decision:
    """Return the decision that all parts agree on, else an inconclusive one that names the disagreement.

    The change is the middle one, and the interval contains those of all parts.
    """
    ones = list(parts.values())
    least_sure = max(ones, key=lambda one: (not one.is_decided, one.high - one.low))
    answer, reason = least_sure.answer, least_sure.reason
    names = {each.answer: [part for part, one in parts.items() if one.answer == each.answer] for each in ones}
    if len(names) > 1:
        says = ", ".join(f"{name} by {' and '.join(those)}" for name, those in names.items())
        reason = "; ".join(filter(None, [f"the machine's yardstick does not decide: {says}", reason]))
        answer = "suspected" if {"regression", "suspected"} & names.keys() else "inconclusive"
    return replace(
        least_sure, answer=answer, reason=reason,
        log_ratio=median([one.log_ratio for one in ones]),
        low=min(one.low for one in ones), high=max(one.high for one in ones),
        p_value=max(one.p_value for one in ones), faster=all(one.faster for one in ones),
        detectable=max((one.detectable for one in ones if one.detectable is not None), default=None),
    )  # fmt: skip
