"""The user's post-accumulate-grad hooks: before the engine takes a gradient, or refused."""

from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

from zbench.engine import build_engine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_hook_sees_the_gradient_of_a_step_of_one_backward(stage: int) -> None:
    model, seen = nn.Linear(3, 2), list[Tensor]()
    with closing(build_engine(model, EngineSpec(zero_stage=stage))) as engine:
        model.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))  # type: ignore[union-attr]
        engine.backward(model(torch.ones(4, 3)).sum())
        engine.step()
    assert [gradient.tolist() for gradient in seen] == [[4.0, 4.0]]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_hook_in_a_step_of_several_backwards_is_refused_with_the_remedy(stage: int) -> None:
    model = nn.Linear(3, 2)
    spec = EngineSpec(zero_stage=stage, gradient_accumulation_steps=2)
    with closing(build_engine(model, spec)) as engine:
        model.bias.register_post_accumulate_grad_hook(lambda p: None)
        with pytest.raises(UsageError, match="'bias' in a step of several backwards"):
            engine.backward(model(torch.ones(4, 3)).sum())
