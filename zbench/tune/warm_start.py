"""Earlier results as a teacher: observations of the same configurations on a machine of the same kind."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.record.record import Record
from zbench.record.store import TRIALS, find_runs, load_environment, load_records
from zbench.record.summary import summarize
from zbench.spec.trial import TrialSpec
from zbench.tune.history import Observation
from zbench.tune.objective import Scorer
from zbench.tune.space import Point, Space

_RUN_KEYS = ("world_size", "device", "threads_per_rank")
"""What of `run` must agree; steps and seeds may differ, they only say how long one looked."""


def priors_from(
    paths: Iterable[Path], space: Space, scorer: Scorer, fingerprint: str
) -> tuple[list[Observation], list[str]]:
    """Return what earlier runs teach about this space, and a sentence for every run that teaches nothing.

    paths: run directories, or directories of runs. UsageError where there is no run at all.
    """
    priors: list[Observation] = []
    remarks: list[str] = []
    for path in paths:
        for run in _runs(path):
            if load_environment(run).get("fingerprint") != fingerprint:
                remarks.append(f"{run} teaches nothing: it was recorded on another kind of machine")
                continue
            found = observations(load_records(run), space, scorer)
            priors += found
            remarks += (
                [] if found else [f"{run} teaches nothing: none of its configurations is in this space"]
            )
    return priors, remarks


def observations(records: Iterable[Record], space: Space, scorer: Scorer) -> list[Observation]:
    """Return one observation for each configuration of the records that is a point of the space."""
    found = []
    for summary in summarize(record for record in records if record.outcome != "invalid"):
        point = _point_of(summary.config, space)
        if point is not None:
            found.append(Observation(point, scorer.score(summary.records)))
    return found


def _point_of(config: Mapping[str, Any], space: Space) -> Point | None:
    """Return the point that has this configuration, or None if the space has no such point."""
    point = space.point_of(config)
    if space.encode(point) is None:
        return None
    trial = space.trial(point)
    return point if isinstance(trial, TrialSpec) and _shape(trial.config()) == _shape(config) else None


def _shape(config: Mapping[str, Any]) -> list[Any]:
    run = {key: config.get("run", {}).get(key) for key in _RUN_KEYS}
    return [config.get("workload"), config.get("engine"), run]


def _runs(path: Path) -> list[Path]:
    if (path / TRIALS).is_file():
        return [path]
    runs = [*find_runs(path), *(p.parent for p in path.glob(f"{TRIALS}"))] if path.is_dir() else []
    if not runs:
        raise UsageError(
            f"search.warm_start: {path} holds no run; name a run directory or a directory of runs"
        )
    return runs
