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
from zbench.tune.objective import share

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
    contenders = ranking([record for record in records() if record.repeat == 0], objective)[:2]
    for _ in range(_MOST_CONTENDERS - 1):
        for summary, repeat in _missing(contenders, records(), wanted, seed):
            measure(_trial_of(summary), repeat)
        leaders = ranking(_settled(records(), wanted), objective)[:2]
        contenders = [s for s in leaders if not _is_settled(s, wanted)][:1]
        if not contenders:
            break
    ranked = [s for s in ranking(records(), objective) if _is_settled(s, wanted)]
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
    other_median = statistics.median(theirs)
    lead = share(sign * (statistics.median(mine) - other_median), other_median)
    return Final(best, other, lead, min(sign * v for v in mine) > max(sign * v for v in theirs))


def _fresh(summary: ConfigSummary, metric: str) -> list[float]:
    fresh = tuple(record for record in summary.records if record.repeat > 0)
    return ConfigSummary(summary.trial_id, summary.axes, summary.config, fresh).values(metric)


def _missing(
    contenders: Sequence[ConfigSummary], records: Sequence[Record], wanted: range, seed: int
) -> list[tuple[ConfigSummary, int]]:
    """Return the fresh repeats to run, round by round, in an order within each round that is drawn anew."""
    known = {(record.trial_id, record.repeat) for record in records}
    missing = [(s, n) for s in contenders for n in wanted if (s.trial_id, n) not in known]
    return sorted(missing, key=lambda m: (m[1], random.Random(f"{seed}/{m[0].trial_id}/{m[1]}").random()))


def _settled(records: Sequence[Record], wanted: range) -> list[Record]:
    """Return the records without fresh repeats of which some are missing: as if that round had not begun."""
    whole = {s.trial_id for s in summarize(records) if _is_settled(s, wanted)}
    return [record for record in records if record.repeat == 0 or record.trial_id in whole]


def _is_settled(summary: ConfigSummary, wanted: range) -> bool:
    return {record.repeat for record in summary.records}.issuperset(wanted)


def _trial_of(summary: ConfigSummary) -> TrialSpec:
    return TrialSpec.model_validate({**summary.config, "axes": summary.axes})
