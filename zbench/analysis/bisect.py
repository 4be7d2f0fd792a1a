"""Find the first bad revision of a list by comparing revisions with the good one. Pure: a probe is given.

The search is for a step from good to bad, as with `git bisect`. A probe may also answer that it cannot tell
(skip: the revision does not build or run) or does not know yet (undecided: measure again, never guess).

A comparison asks whether a change is within a margin, and needs an interval narrower than that. A bisection
knows both ends already: BAD was measured against GOOD, and one step lies between them. A revision is bad
where its blocks exclude GOOD's speed and its estimate lies in BAD's half; good where they exclude BAD's speed
and it lies in GOOD's half. Where they exclude neither it is undecided.
"""

import statistics
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from zbench.analysis.cells import Cell
from zbench.analysis.compare import Comparison
from zbench.analysis.decision import Answer, Decision, holm
from zbench.analysis.evidence import of_blocks, of_runs
from zbench.analysis.paired import Blocks, block_differences
from zbench.analysis.rows import Row
from zbench.analysis.settings import PAIRED_THRESHOLDS, Settings
from zbench.record.summary import is_incorrect

_SIDE_BY_SIDE = 0.0
"""The shift between two series of blocks: a block holds GOOD's time beside the other's, so what the machine
did from one to the next is in none.
"""


Differences = Mapping[str, tuple[float, ...]]
"""Trial id -> the logarithm of BAD over GOOD in each block."""


@dataclass(frozen=True, slots=True)
class LikeGoodOrBad:
    """The question of one search. bad: that of each configuration that became slower.

    Both claims are tested as in a comparison, by Student's t. "Like BAD" is tested by the revision's own
    blocks (against GOOD, margin 0); "like GOOD" by its blocks against BAD's, so that BAD's error counts,
    too.
    """

    bad: Differences

    def decide(self, blocks: Blocks, level: float, before: Mapping[str, Decision]) -> dict[str, Decision]:
        """Return, for each configuration of `bad`: `regression` for like BAD, `pass` for like GOOD."""
        settled = {name: one for name, one in before.items() if one.is_decided}
        seen = [name for name in self.bad if blocks.get(name)]
        p_values = holm({name: of_blocks(blocks[name]).contrast.p_above(0.0) for name in seen})
        return {name: self._answer(name, blocks[name], p_values[name], level) for name in seen} | settled

    def _answer(self, name: str, cells: Sequence[Cell], p_good: float, level: float) -> Decision:
        evidence = of_blocks(cells)
        middle = statistics.fmean(self.bad[name]) / 2
        contrast = evidence.contrast
        behind = of_runs(block_differences(cells), self.bad[name], _SIDE_BY_SIDE)
        answer: Answer = "inconclusive"
        if p_good <= level and contrast.value > middle:
            answer = "regression"
        elif behind.contrast.p_above(0.0) <= level and contrast.value < middle:
            answer = "pass"
        low, high = contrast.interval(level)
        return Decision(
            answer, contrast.value, low, high, middle, p_good,
            evidence.n_base, evidence.n_head, paired=True,
            reason="its speed may be GOOD's or BAD's; use more blocks" if answer == "inconclusive" else "",
        )  # fmt: skip


SETTINGS = Settings(thresholds={**PAIRED_THRESHOLDS, "step_time": 0.0})
"""Whoever names BAD knows that it is slower: any slowdown that is sure is sought."""

Finding = Literal["good", "bad", "skip", "undecided"]
Probe = Callable[[str], Finding]


@dataclass(frozen=True, slots=True)
class Bisection:
    """The first bad revision, or the candidates among which it is where some could not be judged."""

    candidates: tuple[str, ...]
    probes: int

    @property
    def first_bad(self) -> str | None:
        """Return the first bad revision, None where several are left."""
        return self.candidates[0] if len(self.candidates) == 1 else None


def bisect(
    revisions: Sequence[str], probe: Probe, findings: MutableMapping[str, Finding], *, attempts: int = 3
) -> Bisection:
    """Return the first bad one of `revisions`: oldest first, the first known good and the last known bad.

    findings: what earlier probes found; a new finding is put there as soon as it is known, so that an
    interrupted search goes on where it stopped. An undecided probe is repeated up to `attempts` times, and
    then skipped. A skipped revision's neighbour is asked instead.
    """
    low = 0
    high = len(revisions) - 1
    probes = 0
    while True:
        open_ones = [i for i in range(low + 1, high) if findings.get(revisions[i]) != "skip"]
        if not open_ones:
            return Bisection(tuple(revisions[low + 1 : high + 1]), probes)
        middle = min(open_ones, key=lambda i: abs(i - (low + high) / 2))
        name = revisions[middle]
        for _ in range(attempts):
            if findings.get(name) in ("good", "bad", "skip"):
                break
            finding = probe(name)
            probes += 1
            findings[name] = finding
        if findings[name] == "undecided":
            findings[name] = "skip"
        if findings[name] == "good":
            low = middle
        elif findings[name] == "bad":
            high = middle


@dataclass(frozen=True, slots=True)
class Fault:
    """What is sought: the gravest fault that the bad revision shows against the good one.

    metrics: of a `regression`, the exact figures that grew, which then decide alone; empty where it is time.
    blocks: where it is time, BAD's blocks against GOOD of each configuration that became slower, by GOOD's
    trial id: what a revision's own blocks are held against. shown: how BAD shows it where no clock is needed,
    such as a diagnosis, in words.
    """

    answer: Literal["incorrect", "failed", "regression"]
    metrics: frozenset[str] = frozenset()
    blocks: Differences = field(default_factory=dict)
    shown: str = field(default="", compare=False)

    @property
    def needs_clock(self) -> bool:
        """Say whether only timing can show it."""
        return self.answer == "regression" and not self.metrics

    def __str__(self) -> str:
        """Return it in words."""
        words = {"incorrect": "incorrect", "failed": "failing", "regression": "slower"}
        return f"larger in {', '.join(sorted(self.metrics))}" if self.metrics else words[self.answer]


def fault_of(comparison: Comparison) -> Fault | None:
    """Return the gravest fault of a comparison of good with bad, None where it shows none."""
    heads = {row.answer: row.head for row in reversed(comparison.rows)}
    if "incorrect" in heads:
        return Fault("incorrect", shown=heads["incorrect"].diagnosis or "")
    if "failed" in heads:
        error = heads["failed"].error
        return Fault("failed", shown=error.message if error is not None else "")
    metrics = frozenset(one.metric for row in comparison.rows for one in row.exact_with("regression"))
    return Fault("regression", metrics) if metrics else slowdown_of(comparison)


def slowdown_of(comparison: Comparison) -> Fault | None:
    """Return the slowdown that a paired comparison of good with bad shows, None where it shows none."""
    slower = {row.base.trial_id for row in comparison.rows if _timed(row) == "regression"}
    blocks = comparison.paired.differences if comparison.paired is not None else {}
    return Fault("regression", blocks={name: blocks[name] for name in sorted(slower)}) if slower else None


def judged(rows: Sequence[Row], fault: Fault) -> Finding:
    """Return what a comparison of good with a candidate says of the fault that is sought, and of no other.

    A slowdown is judged by a comparison that asked which of the two it is like (`likeness`), in the
    configurations that became slower.

    Where the candidate shows nothing of it (its repeats fail, its verdict or its step time is in doubt), the
    finding is `undecided`.
    """
    asked = [row for row in rows if row.base.trial_id in fault.blocks] if fault.needs_clock else rows
    findings = {_finding(row, fault) for row in asked} or {"undecided"}
    return "bad" if "bad" in findings else "undecided" if "undecided" in findings else "good"


def _finding(row: Row, fault: Fault) -> Finding:
    if fault.answer == "failed":
        return "bad" if row.answer == "failed" else "good"
    if not row.head.ok:
        return "undecided"
    if fault.answer == "incorrect":
        unknown = row.head.is_unjudged or row.head.verdict == "unchecked"
        return "bad" if is_incorrect(row.head) else "undecided" if unknown else "good"
    if fault.metrics:
        if fault.metrics & {one.metric for one in row.exact_with("regression")}:
            return "bad"
        return "undecided" if fault.metrics & {one.metric for one in row.exact_with("unchecked")} else "good"
    return "bad" if _timed(row) == "regression" else "good" if _timed(row) == "pass" else "undecided"


def _timed(row: Row) -> Answer:
    return row.step_time.answer if row.step_time is not None else "inconclusive"
