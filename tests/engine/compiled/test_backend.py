"""Compiled backward graphs deliver every gradient once, with the bits that autograd would have stored."""

import gc
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

from tests.engine.compiled import models
from tests.engine.compiled.harness import Harness, assert_same, shapes_are_dynamic
from zbench.engine import build_engine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec


def test_each_graph_contributes_to_a_parameter_that_two_share() -> None:
    harness = Harness(models.Tied(broken=True))
    for _ in range(2):
        harness.sink.order.clear()
        harness.sink.sums.clear()
        harness.backward(lambda m: m(models.tokens()))
    assert_same(harness.gradients(), harness.expected(lambda m: m(models.tokens())))
    assert len(harness.sink.order) == len(harness.parameters) + 1
    assert not any(harness.registry._outstanding)


def test_shapes_may_be_dynamic_from_the_start() -> None:
    shapes_are_dynamic("aot_eager", 0.0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_that_dynamo_cannot_capture_run_uncompiled(reentrant: bool) -> None:
    harness = Harness(models.Checkpointed(broken=True, reentrant=reentrant))
    harness.backward(lambda m: m(models.vectors()))
    assert_same(harness.gradients(), harness.expected(lambda m: m(models.vectors())))
    assert harness.registry.foreseen is not reentrant


def test_a_forward_that_is_not_differentiated_counts_for_nothing() -> None:
    harness = Harness(models.Tied())
    harness.model(models.tokens(1))
    with torch.no_grad():
        harness.model(models.tokens(2))
    harness.backward(lambda m: m(models.tokens()))
    assert not any(harness.registry._outstanding)
    assert_same(harness.gradients(), harness.expected(lambda m: m(models.tokens())))


def test_two_forwards_in_one_loss_give_two_contributions() -> None:
    harness = Harness(models.WithoutReduction(1))

    def run(model: nn.Module) -> Tensor:
        return model(models.vectors(1)) + model(models.vectors(2))

    harness.backward(run)
    assert len(harness.sink.order) == 2 * len(harness.parameters)
    assert_same(harness.gradients(), harness.expected(run))


def test_a_replaced_parameter_is_refused() -> None:
    model = models.Tied()
    harness = Harness(model)
    harness.backward(lambda m: m(models.tokens()))
    model.blocks[0].mix.weight = nn.Parameter(torch.ones(models.WIDTH, models.WIDTH))
    with pytest.raises(UsageError, match="build a new engine"):
        harness.model(models.tokens())


def test_a_model_that_outlives_its_engine_says_so() -> None:
    harness = Harness(models.Tied())
    model = harness.model
    harness.backward(lambda m: m(models.tokens()))
    del harness
    gc.collect()
    with pytest.raises(UsageError, match=r"engine\.close\(\)"):
        model(models.tokens())


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_compiled_graphs_take_only_the_engines_own_hook(kind: str) -> None:
    model = nn.Linear(3, 2)
    with closing(build_engine(model, EngineSpec(zero_stage=1, compile="aot_eager"))) as engine:
        engine.backward(model(torch.ones(4, 3)).sum())
        engine.step()
        getattr(model.bias, kind)(lambda it: None)
        with pytest.raises(UsageError, match="compile: expected no gradient hooks on parameters"):
            engine.backward(model(torch.ones(4, 3)).sum())
