"""A full grid of results: recorded on a machine, or synthetic where a test says so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zbench.record.record import Record
from zbench.record.store import load_records
from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec
from zbench.tune.history import Score
from zbench.tune.objective import Scorer
from zbench.tune.space import Space, point_key


@dataclass(frozen=True)
class Grid:
    """Scores of every point of a space, by point key."""

    space: Space
    scorer: Scorer
    scores: Mapping[str, Score]

    @property
    def best(self) -> float:
        """The first objective of the best feasible and correct point."""
        values = [score.values[0] for score in self.scores.values() if score.feasible and score.values]
        return max(values) if self.scorer.directions[0] == "maximize" else min(values)

    def is_good(self, score: Score, within: float) -> bool:
        """Whether a score is feasible and at most `within` (a share) behind the best."""
        if not score.feasible or score.values is None:
            return False
        if self.scorer.directions[0] == "maximize":
            return score.values[0] >= self.best * (1 - within)
        return score.values[0] <= self.best * (1 + within)


def grid_of(sweep: SweepSpec, records: Sequence[Record]) -> Grid:
    """Return the grid that these records measured; every point of the space must be among them."""
    space, scorer = Space(sweep), Scorer(sweep.objective)
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.outcome != "invalid":
            groups.setdefault(point_key(space.canonical(record.axes)), []).append(record)
    scores = {key: scorer.score(group) for key, group in groups.items()}
    points = space.points()
    assert points is not None
    missing = [point for point in points if point_key(point) not in scores]
    assert not missing, f"{len(missing)} points were not recorded, such as {missing[0]}"
    return Grid(space, scorer, {point_key(point): scores[point_key(point)] for point in points})


def recorded_grid(path: Path) -> Grid:
    """Return a grid recorded with real measurements: `path` is the records, `.yaml` beside it the sweep."""
    return grid_of(load_sweep(path.with_suffix(".yaml"), environ={}, inputs=False), load_records(path))
