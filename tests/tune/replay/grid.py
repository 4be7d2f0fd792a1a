"""A full grid of results: recorded on a machine, or synthetic where a test says so."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from zbench.record.record import Record
from zbench.record.store import load_records
from zbench.record.summary import summarize
from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.history import Score
from zbench.tune.objective import Scorer
from zbench.tune.space import Space, point_key


@dataclass(frozen=True)
class Grid:
    """What every point of a space measured: its repeats as one record, by trial id."""

    space: Space
    scorer: Scorer
    records: Mapping[str, Record]

    @cached_property
    def scores(self) -> dict[str, Score]:
        """The score of every point, by trial id."""
        return {trial_id: self.scorer.score([record]) for trial_id, record in self.records.items()}

    @cached_property
    def best(self) -> float:
        """The first objective of the best feasible and correct point."""
        values = [score.values[0] for score in self.scores.values() if score.feasible and score.values]
        return max(values) if self.scorer.directions[0] == "maximize" else min(values)

    def shortfall(self, trial_id: str) -> float:
        """Return by which share a point is behind the best; infinite where it is not feasible and correct."""
        score = self.scores[trial_id]
        if not score.feasible or score.values is None:
            return float("inf")
        return abs(self.best - score.values[0]) / abs(self.best)


def grid_of(sweep: SweepSpec, records: Sequence[Record]) -> Grid:
    """Return the grid that these records measured; every point of the space must be among them.

    Rows are found by their axes, so that a grid outlives keys that are added to configurations.
    """
    space = Space(sweep)
    rows = {
        point_key(space.canonical(summary.axes)): _as_one(summary.records)
        for summary in reversed(summarize(record for record in records if record.outcome != "invalid"))
    }
    points = space.points()
    assert points is not None
    missing = [point for point in points if point_key(point) not in rows]
    assert not missing, f"{len(missing)} points were not recorded, such as {missing[0]}"
    return Grid(
        space, Scorer(sweep.objective), {_trial_id(space, point): rows[point_key(point)] for point in points}
    )


def recorded_grid(path: Path) -> Grid:
    """Return a grid recorded with real measurements: `path` is the records, `.yaml` beside it the sweep."""
    return grid_of(load_sweep(path.with_suffix(".yaml"), environ={}, inputs=False), load_records(path))


def slowed(record: Record, factor: float) -> Record:
    """Return a record as if every step had taken so many times as long."""
    timing = record.timing
    if timing is None:
        return record
    times = {
        "step_seconds": [seconds * factor for seconds in timing.step_seconds],
        "median_step_s": timing.median_step_s * factor,
        "tokens_per_s": timing.tokens_per_s / factor,
        "samples_per_s": timing.samples_per_s / factor,
    }
    return replace(record, timing=replace(timing, **times))


def _as_one(repeats: Sequence[Record]) -> Record:
    """Return one record with the median time of all repeats, or the failure of one."""
    failed = next((record for record in repeats if record.outcome != "ok"), None)
    if failed is not None:
        return failed
    middle = statistics.median(r.timing.median_step_s for r in repeats if r.timing is not None)
    first = repeats[0]
    return slowed(first, middle / first.timing.median_step_s) if first.timing is not None else first


def _trial_id(space: Space, point: dict[str, object]) -> str:
    trial = space.trial(point)
    assert isinstance(trial, TrialSpec)
    return trial.trial_id
