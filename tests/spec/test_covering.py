"""Covering arrays: every combination that can occur occurs, in a small share of the points."""

import itertools
from typing import Any

import pytest

from zbench.spec.expand import covering, expand
from zbench.spec.load import sweep_from_mapping

AXES = {"a": [0, 1, 2, 3], "b": ["x", "y"], "c": [None, 1], "d": [False, True], "e": [1, 2, 3]}
POINTS = [
    dict(zip(AXES, values, strict=True))
    for values in itertools.product(*AXES.values())
    if not (values[0] == 0 and values[1] == "y")
]


def combinations(points: list[dict[str, Any]], strength: int) -> set[tuple[tuple[str, Any], ...]]:
    return {
        tuple(part) for point in points for part in itertools.combinations(sorted(point.items()), strength)
    }


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_that_can_occur_occurs(strength: int) -> None:
    chosen = [POINTS[index] for index in covering(POINTS, strength)]
    assert combinations(chosen, strength) == combinations(POINTS, strength)


def test_a_seed_chooses_the_same_points_in_every_version() -> None:
    assert covering(POINTS, 2) == [4, 5, 6, 12, 17, 22, 33, 46, 49, 51, 53, 61, 68, 77, 78]
    assert covering(POINTS, 2) == covering(POINTS, 2, seed=0)
    assert [len(covering(POINTS, strength)) for strength in (1, 5)] == [4, len(POINTS)]


def test_blocks_are_one_value_in_whatever_order_their_keys_are_written() -> None:
    points = [{"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, {"a": {"x": 2, "y": 1}}]
    assert len(covering(points, 1)) == 2


def test_an_axis_that_does_not_apply_is_a_value_of_its_own() -> None:
    points = [{"a": 0}, *({"a": 1, "b": value} for value in "xy")]
    assert covering(points, 2) == [0, 1, 2]


def test_a_sweep_runs_the_chosen_points_only_and_none_that_cannot_exist() -> None:
    axes = {"zero_stage": [0, 1, 2, 3], "offload_optimizer": ["none", "cpu"], "overlap_comm": [True, False]}
    sweep = {"axes": axes | {"dtype": ["float32", "bfloat16"]}, "search": {"method": "covering"}}
    found = expand(sweep_from_mapping(sweep, environ={}))
    every = expand(sweep_from_mapping(sweep | {"search": {}}, environ={}))
    chosen, possible = ([trial.axes for trial in one.trials] for one in (found, every))
    assert combinations(chosen, 2) == combinations(possible, 2)
    assert len(chosen) < 14
    assert found.invalid == []
