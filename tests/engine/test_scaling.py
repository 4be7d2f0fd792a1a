"""Loss scaling beside what `test_float16` and `test_resume` show: its least, and that it begins as it was."""

import math

import pytest
import torch

from zbench.engine.policies import DynamicScaling, LossScaling


def test_the_scale_never_falls_below_one_and_doubles_after_a_window_of_good_steps() -> None:
    scaling = DynamicScaling(2.0, window=3)
    scales = []
    for square_sum in (math.inf, math.nan, math.inf, 1.0, 1.0, 1.0, 1.0):
        assert scaling.judge(square_sum) == math.isfinite(square_sum)
        scales.append(scaling.scale)
    assert scales == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    scaling.resume(32.0, 2)
    assert scaling.judge(1.0)
    assert scaling.scale == 64.0


def test_the_scale_grows_as_far_as_torchs() -> None:
    ours = DynamicScaling(2.0**126, window=1)
    torchs = torch.tensor(2.0**126)
    growth = torch.zeros(1, dtype=torch.int32)
    for _ in range(4):
        assert ours.judge(1.0)
        torch._amp_update_scale_(torchs, growth, torch.zeros(1), 2.0, 0.5, 1)
        assert ours.scale == torchs.item()


@pytest.mark.parametrize("square_sum", [None, 1.0, math.inf, math.nan])
def test_without_scaling_every_step_is_taken(square_sum: float | None) -> None:
    scaling = LossScaling()
    assert scaling.judge(square_sum)
    assert scaling.scale == 1.0
