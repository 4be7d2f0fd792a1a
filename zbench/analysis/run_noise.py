"""The noise between runs of one configuration on one machine, from the runs that a directory holds."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from zbench.analysis import disturbance
from zbench.analysis.evidence import LEAST_HISTORY, RunNoise, noise_of_runs
from zbench.analysis.history import Series, history
from zbench.analysis.sources import load_results
from zbench.analysis.trials import RunResults, step_logs
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


def noise_of_history(runs: Sequence[RunResults]) -> dict[str, RunNoise]:
    """Return the noise between runs by trial id, about the levels that `history` finds in each series.

    A run counts by the mean of its repeats, as in the comparison itself: the median of repeats of which some
    are slow varies less than their mean. Runs that were disturbed say nothing of the machine's own noise.
    """
    means = {
        (run.source.run_ids[0], trial.trial_id): statistics.fmean(logs)
        for run in runs
        for trial in run.trials
        if (logs := step_logs(trial, disturbance.usable(trial)))
    }
    found = {}
    for series in history(runs, "median_step_s"):
        noise = noise_of_runs(_levels(series, means))
        if noise is not None:
            found[series.trial.trial_id] = noise
    return found


def _levels(series: Series, means: Mapping[tuple[str, str], float]) -> list[list[float]]:
    keys = [(visit.run_id, series.trial.trial_id) for visit in series.visits]
    return [[means[key] for key in keys[a:b] if key in means] for a, b, _ in series.levels()]


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
