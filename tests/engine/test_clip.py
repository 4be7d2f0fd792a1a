"""Clipping is torch's."""

import math

import torch

from zbench.engine.policies import clip_coefficient


def test_clipping_follows_torch() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    parameter.grad = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64)
    torch.nn.utils.clip_grad_norm_([parameter], 1.5)
    expected = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64) * clip_coefficient(13.0, 1.5)
    torch.testing.assert_close(parameter.grad, expected, rtol=1e-15, atol=0)


def test_non_finite_norms_go_the_way_of_torch() -> None:
    assert clip_coefficient(math.inf, 1.0) == 0.0
    assert math.isnan(clip_coefficient(math.nan, 1.0))
