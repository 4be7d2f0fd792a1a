"""Levels are found where they change, and nowhere else."""

import numpy as np
import pytest

from zbench.analysis.history import LEAST_SEGMENT, change_points, most_distant_split


def series(levels: list[float], each: int, noise: float = 0.01, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(rng.normal(level, noise)) for level in levels for _ in range(each)]


def test_one_step() -> None:
    assert change_points(series([0.0, 0.05], 15)) == [15]


def test_several_steps_up_and_down() -> None:
    assert change_points(series([0.0, 0.08, 0.02, 0.1], 12)) == [12, 24, 36]


def test_a_change_of_spread_without_one_of_level_is_a_change_too() -> None:
    values = series([0.0], 40, 0.002) + series([0.0], 40, 0.08)
    assert len(change_points(values)) == 1


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_has_no_changes(seed: int) -> None:
    assert change_points(series([0.0], 40, seed=seed)) == []


@pytest.mark.soak
def test_noise_alone_rarely_has_changes() -> None:
    found = sum(bool(change_points(series([0.0], 40, seed=seed))) for seed in range(500))
    assert found / 500 <= 0.02


def test_one_slow_run_is_no_level() -> None:
    values = series([0.0], 30)
    values[12] = 0.5
    assert change_points(values) == []


@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_too_few_runs_say_nothing(count: int) -> None:
    assert change_points([float(i >= count // 2) for i in range(count)]) == []


def test_equal_values_have_no_changes() -> None:
    assert change_points([1.0] * 50) == []


def test_the_answer_is_the_same_every_time() -> None:
    values = series([0.0, 0.02], 12, 0.02)
    assert change_points(values) == change_points(values)
    doubtful = series([0.0, 1.0], 3, 0.001)
    assert change_points(doubtful, alpha=0.1) == change_points(doubtful, alpha=0.1, seed=0)
    assert change_points(doubtful, alpha=0.1) != change_points(doubtful, alpha=0.1, seed=1)


def test_energy_distance_is_that_of_the_definition() -> None:
    values = np.array(series([0.0, 0.1], 6))
    split, distance = most_distant_split(np.abs(values[:, None] - values[None, :]))

    def scaled(at: int) -> float:
        x, y = values[:at], values[at:]
        between = np.abs(x[:, None] - y[None, :]).mean()
        within = np.abs(x[:, None] - x[None, :]).mean() + np.abs(y[:, None] - y[None, :]).mean()
        return float((2 * between - within) * len(x) * len(y) / len(values))

    candidates = {at: scaled(at) for at in range(LEAST_SEGMENT, len(values) - LEAST_SEGMENT + 1)}
    assert distance == pytest.approx(max(candidates.values()))
    assert split == max(candidates, key=lambda at: candidates[at])


def test_how_few_runs_can_tell_follows_from_alpha() -> None:
    """A clean step is as extreme as 2 of the comb(n, n/2) ways to halve n runs: 2 of 20 for 6 runs."""
    step = series([0.0, 1.0], 3, 0.001)
    assert change_points(step, alpha=0.2) == [3]
    found = [change_points(step, alpha=0.1, seed=seed) for seed in range(10)]
    assert [3] in found
    assert [] in found, "a permutation into the same halves counts, too"
    assert not any(change_points(step, alpha=0.0999, seed=seed) for seed in range(20))
    assert change_points(series([0.0, 1.0], 2, 0.001), alpha=0.5) == [], "a level has at least three runs"


def test_999_permutations_show_one_in_a_thousand_and_no_less() -> None:
    clear = series([0.0, 1.0], 15)
    assert change_points(clear, alpha=0.001) == [15]
    assert change_points(clear, alpha=0.0009995) == []


@pytest.mark.parametrize(("values", "at"), [([0.0] * 10 + [1.0] * 2, 9), ([1.0] * 2 + [0.0] * 10, 3)])
def test_no_split_leaves_fewer_than_three_runs_on_a_side(values: list[float], at: int) -> None:
    series = np.array(values)
    assert most_distant_split(np.abs(series[:, None] - series[None, :]))[0] == at
