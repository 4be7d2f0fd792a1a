"""Before a best is announced: it and its runner-up are measured again, alternating, with fresh repeats.

The best of many single measurements is partly the luckiest one. Fresh repeats join the earlier record, so
whoever leads after them is measured in the same way as whoever is second; if that brings up a third
configuration, it is measured too.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, cost, obstacles, summarize
from zbench.spec.sweep import ObjectiveSpec
from zbench.spec.trial import TrialSpec

_FEWEST = 2
_MOST_CONTENDERS = 6

Measure = Callable[[TrialSpec, int], Record]
"""Runs a repeat, keeps its record, returns it."""


@dataclass(frozen=True, slots=True)
class Final:
    """The outcome: the best, whom it beat, and by which share of the objective in fresh repeats alone.

    clear: every fresh repeat of the best beats every one of the runner-up.
    """

    best: ConfigSummary | None
    runner_up: ConfigSummary | None = None
    lead: float | None = None
    clear: bool | None = None


def settle(
    records: Callable[[], Sequence[Record]],
    objective: ObjectiveSpec,
    measure: Measure,
    *,
    repeats: int,
    seed: int,
) -> Final:
    """Measure the leaders again until the first two both have fresh repeats; return who won.

    records: all records on this kind of machine, the new ones too. repeats: fresh ones for each leader. Those
    that exist already (of a run that is resumed) are not measured again.
    """
    wanted = range(1, max(_FEWEST, repeats) + 1)
    for turn in range(_MOST_CONTENDERS):
        leaders = ranking(records(), objective)[:2]
        missing = [(s, n) for n in wanted for s in leaders if n not in {r.repeat for r in s.records}]
        if not missing:
            break
        for summary, repeat in _shuffled(missing, seed + turn):
            measure(_trial_of(summary), repeat)
    ranked = [s for s in ranking(records(), objective) if any(r.repeat > 0 for r in s.records)]
    if not ranked:
        return Final(None)
    if len(ranked) == 1:
        return Final(ranked[0])
    return _compared(ranked[0], ranked[1], objective)


def ranking(records: Sequence[Record], objective: ObjectiveSpec) -> list[ConfigSummary]:
    """Return the feasible and correct configurations, the best first."""
    goal = objective.goals[0]
    able = [
        s for s in summarize(records) if s.number(goal.metric) is not None and not obstacles(s, objective)
    ]
    return sorted(able, key=lambda summary: cost(summary, goal))


def _compared(best: ConfigSummary, other: ConfigSummary, objective: ObjectiveSpec) -> Final:
    goal = objective.goals[0]
    mine, theirs = _fresh(best, goal.metric), _fresh(other, goal.metric)
    if not mine or not theirs:
        return Final(best, other)
    sign = 1 if goal.direction == "maximize" else -1
    lead = (
        sign * (statistics.median(mine) - statistics.median(theirs)) / (abs(statistics.median(theirs)) or 1.0)
    )
    return Final(best, other, lead, min(sign * v for v in mine) > max(sign * v for v in theirs))


def _fresh(summary: ConfigSummary, metric: str) -> list[float]:
    fresh = tuple(record for record in summary.records if record.repeat > 0)
    return ConfigSummary(summary.trial_id, summary.axes, summary.config, fresh).values(metric)


def _shuffled(missing: list[tuple[ConfigSummary, int]], seed: int) -> list[tuple[ConfigSummary, int]]:
    """Return the repeats round by round, the order within each round drawn anew."""
    generator = random.Random(f"final/{seed}")
    return sorted(missing, key=lambda pair: (pair[1], generator.random()))


def _trial_of(summary: ConfigSummary) -> TrialSpec:
    return TrialSpec.model_validate({**summary.config, "axes": summary.axes})
