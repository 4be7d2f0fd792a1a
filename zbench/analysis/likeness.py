"""Whether a revision's step time is like GOOD's or like BAD's: the question that a bisection asks; pure.

A comparison asks whether a change is within a margin, and needs an interval narrower than that. A bisection
knows both ends already: BAD was measured against GOOD, and one step lies between them. A revision is bad
where its blocks exclude GOOD's speed and its estimate lies in BAD's half; good where they exclude BAD's speed
and it lies in GOOD's half. Where they exclude neither it is undecided.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from zbench.analysis import statistics
from zbench.analysis.decision import Answer, Decision, Levels, claim_p
from zbench.analysis.evidence import Paired, RunNoise, Unpaired
from zbench.analysis.paired import Blocks

_SIDE_BY_SIDE = RunNoise(0.0)
"""A block holds GOOD's time beside the other's, so what the machine did from one to the next is in none."""


@dataclass(frozen=True, slots=True)
class LikeGoodOrBad:
    """The question of one search. bad: BAD's blocks against GOOD, of each configuration that became slower.

    Both tests of a claim are those of a comparison: Student's t and an exact one. "Like BAD" is tested by the
    revision's own blocks (against GOOD, margin 0); "like GOOD" by Welch's test and the rank test of its
    blocks against BAD's, so that BAD's error counts, too.
    """

    bad: Blocks

    def decide(
        self,
        differences: Blocks,
        replicates: Blocks,
        levels: Levels,
        before: Mapping[str, Decision],
    ) -> dict[str, Decision]:
        """Return, for each configuration of `bad`: `regression` for like BAD, `pass` for like GOOD."""
        settled = {name: found for name, found in before.items() if found.is_decided}
        seen = {
            name: Paired(differences[name], replicates[name]) for name in self.bad if differences.get(name)
        }
        p_values = statistics.holm([claim_p(revision, 0.0, levels) for revision in seen.values()])
        found = {
            name: self._answer(name, revision, p, levels)
            for (name, revision), p in zip(seen.items(), p_values, strict=True)
        }
        return found | settled

    def _answer(self, name: str, revision: Paired, p_good: float, levels: Levels) -> Decision:
        estimate = revision.estimate()
        middle = math.fsum(self.bad[name]) / len(self.bad[name]) / 2
        faster_than_bad = Unpaired(revision.differences, self.bad[name], _SIDE_BY_SIDE)
        answer: Answer = "inconclusive"
        if p_good <= levels.alarm and estimate.log_ratio > middle:
            answer = "regression"
        elif claim_p(faster_than_bad, 0.0, levels) <= levels.passing and estimate.log_ratio < middle:
            answer = "pass"
        low, high = estimate.interval(levels.passing)
        return Decision(
            answer, estimate.log_ratio, low, high, middle, p_good,
            estimate.n_base, estimate.n_head, paired=True,
            reason="its blocks exclude neither GOOD's speed nor BAD's" if answer == "inconclusive" else "",
        )  # fmt: skip
