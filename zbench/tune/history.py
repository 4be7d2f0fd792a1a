"""What a search has seen: one observation a point, newest last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
