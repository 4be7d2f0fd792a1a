"""What a search has seen: one observation a point, newest last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zbench.spec.metrics import Direction
from zbench.tune.space import Point


@dataclass(frozen=True, slots=True)
class Score:
    """What a trial is worth. `values` is None where it did not finish; no margin may be above 0."""

    values: tuple[float, ...] | None
    margins: Mapping[str, float] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        """Whether the trial finished and met every constraint."""
        return self.values is not None and all(margin <= 0 for margin in self.margins.values())

    @property
    def miss(self) -> float:
        """Return by how much the constraints are violated in all, each relative to its bound."""
        return sum(max(0.0, margin) for margin in self.margins.values())


@dataclass(frozen=True, slots=True)
class Observation:
    """A point and its score, None while it runs. `notes` is what the sampler wants kept with it."""

    point: Point
    score: Score | None
    notes: Mapping[str, Any] = field(default_factory=dict)


History = Sequence[Observation]


def best_first(history: History, directions: Sequence[Direction]) -> list[Point]:
    """Return the points of feasible observations by their first objective, the best first."""
    known = [(o.score.values[0], o.point) for o in history if o.score and o.score.feasible and o.score.values]
    known.sort(key=lambda pair: pair[0], reverse=directions[0] == "maximize")
    return [point for _, point in known]
