"""What a configuration is worth to a search: its objectives, and how far it is from what it must meet.

Margins follow Optuna's convention: at most 0 where a constraint is met. They are relative to the bound, so
that bytes and seconds can be added up; a trial without the figure at all misses by the whole bound. Two
margins are always there: `finished`, and `correct` (a verdict of at least `equivalent`), since nothing else
may be best.
"""

from collections.abc import Sequence

from zbench.record.record import VERDICT_ORDER, Outcome, Record, VerdictName
from zbench.record.summary import ConfigSummary, summarize
from zbench.spec.metrics import Constraint, Direction, Goal
from zbench.spec.sweep import ObjectiveSpec
from zbench.tune.history import Score

CORRECT: VerdictName = "equivalent"
_FAILED: dict[Outcome, float] = {"ok": 0.0, "timeout": 1.0, "oom": 1.0, "crashed": 2.0, "invalid": 2.0}
_MISSING = 1.0
_TOUCHING = 1e-9  # a strict bound that is met exactly is missed by this


class Scorer:
    """Scores all repeats of a configuration by the objectives and constraints of a sweep."""

    def __init__(self, objective: ObjectiveSpec) -> None:
        self.goals: tuple[Goal, ...] = objective.goals
        self.constraints: tuple[Constraint, ...] = objective.constraints

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Return `maximize` or `minimize` of each objective."""
        return tuple(goal.direction for goal in self.goals)

    def score(self, records: Sequence[Record]) -> Score:
        """Return the objectives over all repeats and the margins; no values unless every repeat finished."""
        (summary,) = summarize(records)
        values = [summary.number(goal.metric) for goal in self.goals]
        known = tuple(value for value in values if value is not None)
        finished = _FAILED[summary.outcome] or float(len(known) < len(values))
        margins = {"finished": finished, "correct": _verdict_margin(summary.verdict)}
        margins |= {str(constraint): _margin(constraint, summary) for constraint in self.constraints}
        return Score(None if finished > 0 else known, margins)

    def gain(self, new: Score, old: Score) -> float:
        """Return by which share `new` is better than `old` in the first objective; below 0 if worse."""
        assert new.values is not None
        assert old.values is not None
        difference = share(new.values[0] - old.values[0], old.values[0])
        return difference if self.goals[0].direction == "maximize" else -difference


def share(difference: float, of: float) -> float:
    """Return a difference as a share of a value; the difference itself where that is 0."""
    return difference / abs(of) if of else difference


def _verdict_margin(verdict: VerdictName) -> float:
    """Return how many ranks a verdict is below the lowest correct one."""
    return float(VERDICT_ORDER.index(CORRECT) - VERDICT_ORDER.index(verdict))


def _margin(constraint: Constraint, summary: ConfigSummary) -> float:
    value = summary.metric(constraint.metric)
    violation = constraint.violation(value)
    if violation == float("inf"):
        return _MISSING
    if violation == 0 and not constraint.holds(value):
        return _TOUCHING
    bound = constraint.bound
    return violation if isinstance(bound, str) else share(violation, bound)
