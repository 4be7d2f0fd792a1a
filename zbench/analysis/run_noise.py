"""The noise between runs of one configuration on one machine, from the runs that a directory holds."""

import math
from collections.abc import Iterable
from pathlib import Path

from zbench.analysis.evidence import LEAST_HISTORY, RunNoise, noise_of_runs
from zbench.analysis.history import Series, history
from zbench.analysis.sources import load_results
from zbench.analysis.trials import RunResults
from zbench.errors import ZbenchError
from zbench.record import store


def noise_between_runs(base: RunResults, head: RunResults, output_dir: Path) -> dict[str, RunNoise]:
    """Return what earlier runs of base's sweep on its machine say, by trial id; nothing for too few.

    The compared runs themselves are left out: they cannot show what lies between them.
    """
    compared = {*base.source.run_ids, *head.source.run_ids}
    runs = [
        run
        for run in _runs(output_dir, base.source.sweep)
        if run.source.facts == base.source.facts and not compared & set(run.source.run_ids)
    ]
    return noise_of_history(runs)


def noise_of_history(runs: Iterable[RunResults]) -> dict[str, RunNoise]:
    """Return the noise between runs by trial id, about the levels that `history` finds in each series."""
    found = {}
    for series in history(runs, "median_step_s"):
        noise = noise_of_runs(_levels(series))
        if noise is not None:
            found[series.trial.trial_id] = noise
    return found


def _levels(series: Series) -> list[list[float]]:
    return [[math.log(value) for value in series.values[a:b]] for a, b, _ in series.levels()]


def _runs(output_dir: Path, sweep: str | None) -> list[RunResults]:
    """Return the readable runs of a sweep, oldest first; none where there are too few to tell."""
    paths = [path for path in store.find_runs(output_dir) if sweep in (None, path.parent.name)]
    if len(paths) < LEAST_HISTORY:
        return []
    found = []
    for path in paths:
        try:
            found.append(load_results(str(path), output_dir))
        except ZbenchError:
            continue  # a damaged run of the past is not what the comparison is about
    return found
