"""The policies of a step beside what `test_float16` and `test_parity` show: scale, clipping, backwards."""

import math
from typing import Any

import pytest
import torch

from zbench.engine.policies import (
    AccumulationPolicy,
    DynamicScaling,
    MicroSteps,
    MultiBackward,
    Unmanaged,
    clip_coefficient,
)
from zbench.errors import UsageError


def test_the_scale_stays_above_one_and_doubles_after_a_window() -> None:
    scaling = DynamicScaling(2.0, window=3)
    scales = []
    for square_sum in (math.inf, math.nan, math.inf, 1.0, 1.0, 1.0, 1.0):
        assert scaling.judge(square_sum) == math.isfinite(square_sum)
        scales.append(scaling.scale)
    assert scales == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]


def test_the_scale_grows_as_far_as_torchs() -> None:
    ours = DynamicScaling(2.0**126, window=1)
    torchs = torch.tensor(2.0**126)
    growth = torch.zeros(1, dtype=torch.int32)
    for _ in range(4):
        assert ours.judge(1.0)
        torch._amp_update_scale_(torchs, growth, torch.zeros(1), 2.0, 0.5, 1)
        assert ours.scale == torchs.item()


@pytest.mark.parametrize("norm", [13.0, math.inf, math.nan])
def test_clipping_is_torchs(norm: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.tensor([norm], dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], 1.5)
    ours = torch.tensor([norm], dtype=torch.float64) * clip_coefficient(norm, 1.5)
    torch.testing.assert_close(parameter.grad, ours, rtol=1e-15, atol=0, equal_nan=True)


MARKS: dict[str, tuple[Any, list[bool | None]]] = {
    "micro_steps": (lambda: MicroSteps(3), [None] * 3),
    "multi_backward": (MultiBackward, [None, False, True]),
    "unmanaged": (Unmanaged, [None] * 3),
}
"""Of each mode: a policy, and the marks of a step's three backwards."""


@pytest.mark.parametrize(("make", "marks"), MARKS.values(), ids=MARKS.keys())
def test_calls_out_of_turn_are_refused_in_each_mode(make: Any, marks: list[bool | None]) -> None:
    mode: AccumulationPolicy = make()
    for _ in range(2):
        with pytest.raises(UsageError, match=r"engine\.backward"):
            mode.check_step()
        for mark in marks:
            mode.next(mark)
            mode.done()
        if not isinstance(mode, Unmanaged):
            with pytest.raises(UsageError, match=r"call engine\.step"):
                mode.next(marks[-1])
        mode.check_step()
        mode.reset()
    if not isinstance(mode, MultiBackward):
        with pytest.raises(UsageError, match="multi_backward"):
            mode.next(True)
