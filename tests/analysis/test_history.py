"""A configuration over many runs: changes of level are found, with a known rate of false ones."""

import math
from dataclasses import replace

import numpy as np
import pytest

from zbench.analysis.history import change_points, history
from zbench.analysis.trials import RunResults
from zbench.record.record import Heat

from .synthetic import MACHINE, results, trial


def series(levels: list[float], each: int, noise: float = 0.01, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(rng.normal(level, noise)) for level in levels for _ in range(each)]


def test_a_step_is_found_beside_outliers() -> None:
    """Runs beside other work, one in eight: 5 % at 2 % of noise is found in most series of 60."""
    rng = np.random.default_rng(1)
    hits = 0
    false = 0
    step = 0.05 * (np.arange(60) >= 30)
    for _ in range(12):
        noise = rng.normal(0, 0.02, 60) + (rng.random(60) < 0.12) * rng.exponential(0.3, 60)
        hits += any(abs(at - 30) <= 2 for at in change_points(noise + step, remembers=True))
        false += bool(change_points(noise, remembers=True))
    assert hits >= 7
    assert false <= 1


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        (series([0.0, 0.05], 15), [15]),
        (series([0.0, 0.08, 0.02, 0.1], 12), [12, 24, 36]),
        (series([0.0], 40, 0.002) + series([0.0], 40, 0.08), [40]),
        *((series([0.0], 40, seed=seed), []) for seed in range(3)),
        ([0.0] * 12 + [0.5] + [0.0] * 17, []),
        *(([float(i >= count // 2) for i in range(count)], []) for count in (0, 9)),
    ],
)
def test_levels_are_told_apart_from_noise_outliers_and_few_runs(
    values: list[float], changes: list[int]
) -> None:
    """A change of spread is a change of level, too."""
    assert change_points(values) == pytest.approx(changes, abs=2 if changes == [40] else 0)


@pytest.mark.check
def test_changes_of_a_long_history_are_found_once() -> None:
    """It is searched 200 runs at a time."""
    starts = [130, 230]
    assert change_points([float(sum(i >= start for start in starts) % 2) for i in range(240)]) == starts


def remembering(phi: float, n: int, rng: np.random.Generator) -> list[float]:
    """Return values of 2 % noise that keep `phi` of the deviation before."""
    values = [rng.normal(0, 0.02)]
    for _ in range(n - 1):
        values.append(phi * values[-1] + rng.normal(0, 0.02 * math.sqrt(1 - phi**2)))
    return [float(value) for value in values]


@pytest.mark.parametrize("n", [12, pytest.param(60, marks=pytest.mark.check)])
def test_times_like_the_run_before_have_no_changes(n: int) -> None:
    """Seen: changes in 7 to 78 % of such series."""
    rng = np.random.default_rng(n)
    changes = [change_points(remembering(0.5, n, rng), remembers=True) for _ in range(400)]
    assert sum(map(bool, changes)) <= 4


FAST, SLOW = 0.1, 0.12


def run(index: int, step_s: float, **source: object) -> RunResults:
    steps = [step_s * factor for factor in (0.99, 1.0 + 0.001 * (index % 3), 1.01)]
    return results(trial(steps), run_ids=(f"run{index}",), commit=f"commit{index}", **source)


def test_a_slowdown_is_blamed_on_its_commit() -> None:
    runs = [run(i, FAST if i < 8 else SLOW) for i in range(16)]
    (series,) = history(runs, "median_step_s")
    (change,) = series.changes
    assert (change.index, change.after, change.commit) == (8, "commit7", "commit8")
    assert change.change == pytest.approx(0.2, abs=0.02)
    assert [level[:2] for level in series.levels()] == [(0, 8), (8, 16)]
    assert series.visits[8].run_id == "run8"
    assert series.visits[0].value == pytest.approx(FAST), "the median over repeats"


def test_times_are_divided_by_a_yardstick_that_all_runs_have() -> None:
    """The machine slows by a half after eight runs, the code by a fifth after twelve."""

    def beside(index: int, has_yardstick: bool, version: int = 1) -> RunResults:
        pace, step = (1.5 if index >= 8 else 1.0), (SLOW if index >= 12 else FAST)
        base = run(index, pace * step).trials[0].records
        heats = [Heat("", [r.timing.median_step_s], [], {"compute": [pace]}, version) for r in base]
        records = [
            replace(r, heat=heat if has_yardstick else None) for r, heat in zip(base, heats, strict=True)
        ]
        return results(records, run_ids=(f"run{index}",))

    (over,) = history([beside(i, True) for i in range(24)], "mean_step_s")
    assert [(one.index, round(one.change, 2)) for one in over.changes] == [(12, 0.2)]
    (rate,) = history([beside(i, True) for i in range(24)], "tokens_per_s")
    assert [(one.index, round(one.change, 2)) for one in rate.changes] == [(12, round(1 / 1.2 - 1, 2))]
    (raw,) = history([beside(i, i > 0) for i in range(24)], "mean_step_s")
    (worst,) = history([beside(i, True) for i in range(24)], "worst_step_s")
    assert raw.changes[0].index == worst.changes[0].index == 8, "the yardstick's turns have no worst step"
    (unlike,) = history([beside(i, True, 1 + i // 12) for i in range(24)], "mean_step_s")
    assert unlike.changes[0].index == 8, "two versions of the yardstick cannot be compared"


def test_machines_are_never_mixed() -> None:
    runs = [run(i, FAST if i % 2 else SLOW, facts=MACHINE | {"cores": 2 + i % 2}) for i in range(20)]
    histories = history(runs, "median_step_s")
    assert [(len(series.visits), series.changes) for series in histories] == [(10, ()), (10, ())]


def test_jobs_that_ran_on_unlike_machines_are_never_mixed() -> None:
    def on(index: int, machine: str | None) -> RunResults:
        steps = trial([FAST if index % 2 else SLOW] * 3)
        return results([replace(r, machine=machine) for r in steps], run_ids=(f"run{index}",))

    apart = [on(i, ("A", "B")[i % 2]) for i in range(20)]
    assert [len(series.visits) for series in history(apart, "median_step_s")] == [10, 10]
    older = [on(2 * i, "A" if i > 5 else None) for i in range(10)]
    assert [len(series.visits) for series in history(older, "median_step_s")] == [10]


def test_exact_metrics_have_levels_too() -> None:
    runs = [results(trial([0.1], peak=1000 if i < 6 else 1100), run_ids=(f"run{i}",)) for i in range(12)]
    (series,) = history(runs, "peak_device_bytes")
    assert [change.index for change in series.changes] == [6]
    assert series.changes[0].change == pytest.approx(0.1)


def test_runs_without_the_figure_are_left_out() -> None:
    runs = [run(0, FAST), results(trial([0.1], outcome="oom"), run_ids=("failed",)), run(2, FAST)]
    (series,) = history(runs, "median_step_s")
    assert [visit.run_id for visit in series.visits] == ["run0", "run2"]
    assert history(runs, "tflops") == []
