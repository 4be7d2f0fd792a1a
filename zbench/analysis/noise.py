"""What the machine's own noise is: of a version against itself, and between earlier runs of one sweep."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from zbench.analysis import statistics
from zbench.analysis.compare import Comparison
from zbench.analysis.decision import LEAST_HISTORY, RunNoise, noise_of_runs
from zbench.analysis.history import Series, history
from zbench.analysis.sources import load_results
from zbench.analysis.trials import RunResults, step_logs, usable
from zbench.errors import ZbenchError
from zbench.record import store

_STEP = 0.005


@dataclass(frozen=True, slots=True)
class NoiseReport:
    """Fractions. `noise` is the spread of one block's difference, the largest over configurations.

    margin: the smallest threshold at which A against A passes nineteen times in twenty.
    detectable: the smallest slowdown called at that margin with power 0.9. alarms: regressions called, which
    should be none.
    """

    blocks: int
    comparisons: int
    noise: float
    margin: float
    detectable: float
    alarms: int
    drift: float


def noise_report(comparison: Comparison) -> NoiseReport:
    """Return the report of a paired comparison whose base and head are the same version."""
    data = comparison.paired
    assert data is not None, "noise is read from a paired measurement"
    measured = [values for values in data.blocks.values() if len(values) > 1]
    blocks = min((len(values) for values in measured), default=0)
    noise = max((stdev(values) for values in measured), default=math.nan)
    alpha = comparison.settings.alpha
    margin = math.expm1(reach(noise, blocks, alpha, 0.95))
    margin = margin if math.isnan(margin) else math.ceil(margin / _STEP) * _STEP
    found = reach(noise, blocks, alpha / max(len(measured), 1), 0.9)  # in Holm's worst case
    return NoiseReport(
        blocks,
        len(measured),
        noise,
        margin,
        math.expm1(math.log1p(margin) + found),
        sum(one.answer == "regression" for _, one in comparison.timed),
        data.control.drift,
    )


def reach(noise: float, blocks: int, alpha: float, power: float) -> float:
    """Return how far beyond a bound (a logarithm) the t test of some blocks sees a change with this power."""
    if blocks < 2:
        return math.nan
    return statistics.reach(blocks - 1, alpha, power) * noise / math.sqrt(blocks)


def noise_between_runs(base: RunResults, head: RunResults, output_dir: Path) -> dict[str, RunNoise]:
    """Return what earlier runs of base's sweep on its machine say, by trial id; nothing for too few.

    The compared runs themselves are left out: they cannot show what lies between them.
    """
    compared = {*base.source.run_ids, *head.source.run_ids}
    runs = [
        run
        for run in _runs(output_dir, base.source.sweep)
        if (run.source.facts == base.source.facts and run.machines <= base.machines)
        and not compared & set(run.source.run_ids)
    ]
    return noise_of_history(runs)


def noise_of_history(runs: Sequence[RunResults]) -> dict[str, RunNoise]:
    """Return the noise between runs by trial id, about the levels that `history` finds in each series.

    A run counts by the mean of its repeats, as in the comparison itself: the median of repeats of which some
    are slow varies less than their mean. Runs that were disturbed say nothing of the machine's own noise.
    """
    means = {
        (run.source.run_ids[0], trial.trial_id): fmean(logs)
        for run in runs
        for trial in run.trials
        if (logs := step_logs(trial, usable(trial)))
    }
    by_trial = {}
    runs = [replace(run, source=replace(run.source, branch=None)) for run in runs]  # the machine's, of all
    for series in history(runs, "mean_step_s"):
        if (noise := noise_of_runs(_levels(series, means))) is not None:
            by_trial[series.trial.trial_id] = noise
    return by_trial


def _levels(series: Series, means: Mapping[tuple[str, str], float]) -> list[list[float]]:
    keys = [(visit.run_id, series.trial.trial_id) for visit in series.visits]
    return [[means[key] for key in keys[a:b] if key in means] for a, b, _ in series.levels()]


def _runs(output_dir: Path, sweep: str | None) -> list[RunResults]:
    """Return the readable runs of a sweep, oldest first; none where there are too few to tell."""
    paths = [path for path in store.find_runs(output_dir) if sweep in (None, path.parent.name)]
    if len(paths) < LEAST_HISTORY:
        return []
    loaded = []
    for path in paths:
        try:
            loaded.append(load_results(str(path), output_dir))
        except ZbenchError:
            continue  # a damaged run of the past is not what the comparison is about
    return loaded
