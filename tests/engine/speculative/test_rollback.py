"""A step taken back leaves the bits of before, whatever the gradients held; a replay starts from them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.plain import assert_same
from tests.engine.speculative.running import Layers, bits, engine, layers, loss

HOSTILE = {
    "inf": float("inf"),
    "nan": float("nan"),
    "denormal": 1e-42,
    "large": -3e38,
}
HOW: dict[str, dict[str, Any]] = {
    "double buffer": {},
    "journal": {"rollback": "journal"},
    "shared out": {"offload_ratio": 0.6},
    "journal, shared out": {"rollback": "journal", "offload_ratio": 0.6},
}
each_way = pytest.mark.parametrize("how", HOW)


def poisoned(model: Layers, value: float) -> Tensor:
    """Return a loss whose gradient of the first layer's bias is `value` here and there."""
    spike = torch.zeros_like(model.layers[0].bias)
    spike[::7] = value
    return loss(model) + _Spike.apply(model.layers[0].bias, spike)


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return x.sum() * 0

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        return ctx.saved_tensors[0].clone(), None


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("limit", [0.0, 1e-4])
@each_way
def test_hostile_gradients_leave_the_bits_of_after_backward(name: str, limit: float, how: str) -> None:
    states = []
    for options in (HOW[how], {"offload_schedule": "after_backward"}):
        model = layers()
        with engine(model, gradient_clipping=limit, **options) as e:
            for step in range(3):
                e.backward(poisoned(model, HOSTILE[name]) if step == 1 else loss(model, step))
                e.step()
            states.append(bits(e))
    assert_same(*states)


@each_way
def test_a_hyperparameter_changed_after_backward_counts_for_this_step(how: str) -> None:
    states = []
    for options in (HOW[how], {"offload_schedule": "after_backward"}):
        model = layers()
        with engine(model, **options, param_groups={"*bias": {"lr": 0.1}}) as e:
            e.backward(loss(model))
            e.param_groups[1]["lr"] = 0.01
            info = e.step()
            assert info.rolled_back == ("offload_schedule" not in options)
            states.append(bits(e))
    assert_same(*states)
