"""The tuner, measured by replay: how many trials it needs to come close to a best that is known.

The bars, for 50 seeds on a recorded grid, are held by the soak; the default run holds them for a few seeds.
Until a grid is recorded in `results/benchmarks/`, only the synthetic surfaces are played.
"""

import random
import statistics
from pathlib import Path

import pytest

from zbench.spec.sweep import SearchSpec

from .grid import Grid, grid_of, recorded_grid
from .search import median_trials, play, random_median
from .synthetic import synthetic_records, synthetic_sweep

RECORDED = sorted((Path(__file__).parents[3] / "results" / "benchmarks").glob("grid-*.jsonl"))
SEEDS = range(50)
FEW = range(7)


@pytest.fixture(scope="module")
def synthetic() -> Grid:
    sweep = synthetic_sweep()
    return grid_of(sweep, synthetic_records(sweep, seed=1))


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> Grid:
    return recorded_grid(request.param)


def test_there_is_a_recorded_grid_large_enough(recorded: Grid) -> None:
    assert len(recorded.records) >= 200
    assert all(
        r.timing is not None and r.correctness.verdict == "identical" for r in recorded.records.values()
    )


def test_tpe_comes_close_to_the_best_soon(recorded: Grid) -> None:
    needed = median_trials(recorded, "tpe", FEW)
    assert needed <= 0.15 * len(recorded.records)
    assert needed <= 0.6 * random_median(recorded)


def test_tpe_comes_close_under_noise(recorded: Grid) -> None:
    assert median_trials(recorded, "tpe", FEW, noise=0.03) <= 0.20 * len(recorded.records)


def test_tpe_comes_close_on_a_synthetic_surface_too(synthetic: Grid) -> None:
    needed = median_trials(synthetic, "tpe", range(5))
    assert needed <= 0.15 * len(synthetic.records)
    assert needed <= 0.6 * random_median(synthetic)


def test_the_median_of_random_search_is_exact(synthetic: Grid) -> None:
    generator, ids = random.Random(0), list(synthetic.records)
    good = {trial_id for trial_id in ids if synthetic.shortfall(trial_id) <= 0.02}
    draws = [generator.sample(ids, len(ids)) for _ in range(2001)]
    simulated = statistics.median(next(n for n, key in enumerate(drawn, 1) if key in good) for drawn in draws)
    assert simulated == pytest.approx(random_median(synthetic), rel=0.1)


def test_a_search_within_its_budget_never_runs_a_point_twice(synthetic: Grid) -> None:
    played = play(synthetic, SearchSpec(method="tpe", trials=30, seed=3))
    assert len(set(played.trial_ids)) == len(played.trial_ids) <= 30


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_bars_of_the_tuner(recorded: Grid) -> None:
    count = len(recorded.records)
    exact, noisy = (median_trials(recorded, "tpe", SEEDS, noise=noise) for noise in (0.0, 0.03))
    assert exact <= 0.15 * count
    assert exact <= 0.6 * random_median(recorded)
    assert noisy <= 0.20 * count
