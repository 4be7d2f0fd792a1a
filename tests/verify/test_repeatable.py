"""A reference is made of a step that can be repeated, and of weights that forward only reads."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.verify.runs import MLP, reference, task
from zbench.errors import UsageError
from zbench.verify.plain_training import ROUNDING, PlainRun, require_same


class Changed(nn.Module):
    """A model whose loss is `change`d; its data are tokens and targets."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.scale = nn.Embedding(256, 4), nn.Parameter(torch.ones(3))
        self.own = np.random.default_rng()

    def change(self, loss: Tensor) -> Tensor:
        return loss

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.change(self.embed(tokens).square().mean() * self.scale.sum())


class Noisy(Changed):
    def change(self, loss: Tensor) -> Tensor:
        return loss * (1 + 1e-5 * self.own.random())


class LateNoise(Changed):
    """Adds nothing to the loss, and noise to a gradient."""

    def change(self, loss: Tensor) -> Tensor:
        noise = self.scale * float(self.own.random())
        return loss + (noise - noise.detach()).sum()


class NotANumber(Changed):
    def change(self, loss: Tensor) -> Tensor:
        return loss * math.nan


class Writing(Changed):
    def change(self, loss: Tensor) -> Tensor:
        with torch.no_grad():
            self.scale += 1
        return loss


def training(model: type[nn.Module]) -> PlainRun:
    made = task(MLP, steps=2)
    return dataclasses.replace(made, workload=dataclasses.replace(made.workload, factory=model))


def test_a_step_that_repeats_is_a_reference() -> None:
    assert len(reference(training(Changed)).plain.losses) == 2


def test_noise_of_any_size_is_refused_on_a_cpu() -> None:
    with pytest.raises(
        UsageError, match=r"seed differ \(loss \d\.\d+ and \d\.\d+\), so nothing can be verified"
    ):
        reference(training(Noisy))


def test_noise_in_the_gradient_alone_is_refused() -> None:
    with pytest.raises(UsageError, match=r"seed differ \(gradient norm \d\.\d+ and \d\.\d+\)"):
        reference(training(LateNoise))


def test_what_is_never_a_number_repeats() -> None:
    assert reference(training(NotANumber)).plain.losses.isnan().all()


def test_weights_that_forward_writes_are_named() -> None:
    with pytest.raises(UsageError, match=r"its forward writes scale \(1 in all\).*register_buffer"):
        reference(training(Writing))


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-5), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_another_device_may_round_otherwise_and_no_more(dtype: str, allowed: float) -> None:
    first = torch.tensor([1.0, 1.0, math.nan, 0.0], dtype=torch.float64)
    near, far = (first * torch.tensor([1.0, 1 + part * allowed, 1.0, 1.0]).double() for part in (0.9, 1.1))
    require_same("loss", first, near, ROUNDING[dtype])
    for second, rounding in ((far, ROUNDING[dtype]), (near, 0.0)):
        with pytest.raises(UsageError, match=r"\(loss 1 and 1\.\d+\)"):
            require_same("loss", first, second, rounding)
