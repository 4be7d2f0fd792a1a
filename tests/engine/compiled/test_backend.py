"""A step's compiled backward delivers every gradient once, whatever the loss is made of, or is refused."""

from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

from tests.engine.compiled import cases as models
from tests.engine.plain import assert_same
from zbench.engine import Engine, build_engine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

COMPILED = EngineSpec(zero_stage=1, compile="aot_eager")


def built(model: nn.Module, spec: EngineSpec = COMPILED) -> Engine:
    torch._dynamo.reset()  # it keeps code by code object, which models share
    return build_engine(model, spec)


def check(make: Callable[[], nn.Module], run: Callable[[nn.Module], Tensor]) -> None:
    """Two steps leave the bits of an engine that does not compile."""
    states = []
    for spec in (COMPILED, EngineSpec(zero_stage=1)):
        torch.manual_seed(3)
        with closing(built(make(), spec)) as engine:
            for _ in range(2):
                engine.backward(run(engine.model))
                engine.step()
            states.append(engine.state_dict())
    assert_same(*states)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_that_dynamo_cannot_capture_run_uncompiled(reentrant: bool) -> None:
    check(lambda: models.Checkpointed(broken=True, reentrant=reentrant), lambda m: m(models.vectors()))


def test_a_forward_that_is_not_differentiated_counts_for_nothing() -> None:
    def run(model: nn.Module) -> Tensor:
        model(models.tokens(1))
        with torch.no_grad():
            model(models.tokens(2))
        loss: Tensor = model(models.tokens())
        return loss

    check(models.Tied, run)


def test_two_forwards_in_one_loss_give_two_contributions() -> None:
    check(lambda: models.WithoutReduction(1), lambda m: m(models.vectors(1)) + m(models.vectors(2)))


def test_a_replaced_parameter_is_refused() -> None:
    with closing(built(models.Tied())) as engine:
        engine.backward(engine.model(models.tokens()))
        engine.step()
        engine.model.blocks[0].mix.weight = nn.Parameter(torch.ones(models.WIDTH, models.WIDTH))
        with pytest.raises(UsageError, match="build another engine"):
            engine.backward(engine.model(models.tokens()))


def test_hooks_of_others_and_backward_outside_the_engine_are_refused() -> None:
    model = nn.Linear(3, 2)
    with closing(built(model)) as engine:
        with pytest.raises(UsageError, match=r"engine\.backward"):
            model(torch.ones(4, 3)).sum().backward()
        engine.backward(model(torch.ones(4, 3)).sum())
        engine.step()
        for register in (model.bias.register_hook, model.bias.register_post_accumulate_grad_hook):
            hook = register(lambda it: None)
            with pytest.raises(UsageError, match="compile: expected no gradient hooks on parameters"):
                engine.backward(model(torch.ones(4, 3)).sum())
            hook.remove()
    model(torch.ones(4, 3)).sum().backward()
    assert all(p.grad is not None for p in model.parameters()), "an ordinary model again"
