"""What a configuration is worth to a search: its objectives, and how far it is from what it must meet.

Margins follow Optuna's convention: at most 0 where a constraint is met. They are relative to the bound, so
that bytes and seconds can be added up; a trial without the figure at all misses by the whole bound. Two
margins are always there: `finished`, and `correct` (a verdict of at least `equivalent`, with nothing
left unchecked), since nothing else may be best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from zbench.record.record import Outcome
from zbench.record.summary import ConfigSummary, first_goal
from zbench.spec.metrics import VERDICTS, Constraint, Direction
from zbench.spec.sweep import ObjectiveSpec

_FAILED: dict[Outcome, float] = {"ok": 0.0, "timeout": 1.0, "oom": 1.0, "crashed": 2.0, "invalid": 2.0}
_MISSING = 1.0
_TOUCHING = 1e-9  # a strict bound that is met exactly is missed by this

History = Sequence[FrozenTrial]
"""Trials that a search learns from, the newest last; `user_attrs["point"]` is the point of each."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a trial is worth. `values` is None where it did not finish; no margin may be above 0."""

    values: tuple[float, ...] | None
    margins: Mapping[str, float]

    @property
    def state(self) -> TrialState:
        """The state of its trial in a study."""
        return TrialState.PRUNED if self.values is None else TrialState.COMPLETE

    @property
    def miss(self) -> float:
        """Return by how much the constraints are violated in all, each relative to its bound."""
        return sum(max(0.0, margin) for margin in self.margins.values())


def directions_of(objective: ObjectiveSpec) -> tuple[Direction, ...]:
    """Return `maximize` or `minimize` of each objective."""
    return tuple(goal.direction for goal in objective.goals)


def score(summary: ConfigSummary, objective: ObjectiveSpec) -> Score:
    """Return the objectives over all repeats and the margins; no values unless every repeat finished."""
    goals = (first_goal([summary], objective), *objective.goals[1:])
    values = [summary.number(goal.metric) for goal in goals]
    figures = tuple(value for value in values if value is not None)
    finished = _FAILED[summary.outcome] or float(len(figures) < len(values))
    correct = VERDICTS.index("equivalent") - VERDICTS.index(summary.verdict)
    correct = max(correct, 1) if summary.not_checked else correct
    margins = {"finished": finished, "correct": float(correct)}
    margins |= {str(constraint): _margin(constraint, summary) for constraint in objective.constraints}
    return Score(None if finished > 0 else figures, margins)


def is_feasible(trial: FrozenTrial) -> bool:
    """Whether a trial finished and met every constraint."""
    return trial.state == TrialState.COMPLETE and all(v <= 0 for v in trial.constraints.values())


def relative(difference: float, to: float) -> float:
    """Return a difference as a share of a value; the difference itself where that is 0."""
    return difference / abs(to) if to else difference


def _margin(constraint: Constraint, summary: ConfigSummary) -> float:
    value = summary.metric(constraint.metric)
    violation = constraint.violation(value)
    if violation == float("inf"):
        return _MISSING
    if violation == 0 and not constraint.holds(value):
        return _TOUCHING
    bound = constraint.bound
    return violation if isinstance(bound, str) else relative(violation, bound)
