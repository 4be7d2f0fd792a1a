"""What matters most comes first; too little says nothing."""

import pytest

from zbench.tune.history import Observation, Score
from zbench.tune.importance import importance
from zbench.tune.space import Point, Space

from .fakes import small_sweep

AXES = {"zero_stage": [0, 1, 2], "overlap_comm": [True, False], "reduce_bucket_size": [10, 100, 1000]}
SPACE = Space(small_sweep(axes=AXES))


def history(value_of: object, count: int = 18) -> list[Observation]:
    points: list[Point] = (SPACE.points() or [])[:count]
    return [Observation(point, Score((float(value_of(point)),))) for point in points]  # type: ignore[operator]


def test_the_axis_that_moves_the_objective_leads() -> None:
    found = importance(history(lambda p: 10 * p["zero_stage"] + p["overlap_comm"]), SPACE, "maximize")
    assert next(iter(found)) == "zero_stage"
    assert sum(found.values()) == pytest.approx(1)
    assert found["reduce_bucket_size"] < 0.2


def test_too_few_or_equal_values_say_nothing() -> None:
    assert importance(history(lambda p: p["zero_stage"], count=11), SPACE, "maximize") == {}
    assert importance(history(lambda p: p["zero_stage"], count=12), SPACE, "maximize")
    assert importance(history(lambda p: 1), SPACE, "maximize") == {}
    assert importance([], SPACE, "minimize") == {}


def test_four_trials_for_each_axis_are_needed() -> None:
    axes = {**AXES, "allgather_bucket_size": [10, 100]}
    space = Space(small_sweep(axes=axes))
    points = [point for point in space.points() or [] if point["zero_stage"] > 0]
    seen = [Observation(point, Score((float(n),))) for n, point in enumerate(points)]
    assert importance(seen[:15], space, "maximize") == {}
    assert importance(seen[:16], space, "maximize")


def test_where_nothing_varies_nothing_matters() -> None:
    space = Space(small_sweep(axes={}))
    assert importance([Observation({}, Score((float(n),))) for n in range(20)], space, "maximize") == {}


def test_failed_and_running_trials_do_not_count() -> None:
    points = SPACE.points() or []
    seen = [Observation(points[0], None), Observation(points[1], Score(None, {"finished": 1.0}))]
    assert importance([*seen, *history(lambda p: p["zero_stage"])], SPACE, "maximize")


def test_conditional_axes_are_judged_where_they_act() -> None:
    axes = {"zero_stage": [1, 2], "offload_optimizer": ["none", "cpu"], "offload_ratio": [0.25, 0.5, 1.0]}
    space = Space(small_sweep(axes=axes, engine={"engine": "mine:build"}))
    seen = [
        Observation(point, Score((100.0 * point.get("offload_ratio", 0.0) + n,)))
        for n, point in enumerate((space.points() or []) * 2)
    ]
    assert "offload_ratio" in importance(seen, space, "maximize")
