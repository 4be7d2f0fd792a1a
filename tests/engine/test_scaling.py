"""Loss scaling halves on overflow, doubles after a window of good steps, and resumes where it was."""

import math

import pytest

from zbench.engine.policies import DynamicScaling, LossScaling


def test_an_overflow_halves_the_scale_and_a_window_of_good_steps_doubles_it() -> None:
    scaling = DynamicScaling(8.0, window=3)
    assert [scaling.judge(s) for s in (1.0, math.inf, math.nan)] == [True, False, False]
    assert scaling.scale == 2.0
    for expected in (2.0, 2.0, 4.0, 4.0):
        assert scaling.judge(1.0)
        assert scaling.scale == expected


def test_the_scale_never_falls_below_one() -> None:
    scaling = DynamicScaling(2.0, window=3)
    for _ in range(5):
        scaling.judge(math.inf)
    assert scaling.scale == 1.0


@pytest.mark.parametrize("square_sum", [None, 1.0, math.inf, math.nan])
def test_without_scaling_every_step_is_taken(square_sum: float | None) -> None:
    scaling = LossScaling()
    assert scaling.judge(square_sum)
    assert scaling.scale == 1.0


def test_scaling_resumes() -> None:
    scaling = DynamicScaling(8.0, window=2)
    scaling.resume(32.0, 1)
    assert scaling.judge(1.0)
    assert scaling.scale == 64.0
