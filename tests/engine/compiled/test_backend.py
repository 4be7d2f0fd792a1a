"""Compiled backward graphs deliver every gradient once, with the bits that autograd would have stored."""

import copy
import gc
from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

from tests.engine.compiled import models
from zbench.engine import build_engine
from zbench.engine.compiled.backend import compile_in_place
from zbench.engine.compiled.registry import StepRegistry
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec


class Kept:
    """A sink that sums what it is given, and counts."""

    def __init__(self, registry: StepRegistry) -> None:
        self.registry = registry
        self.sums: dict[int, Tensor] = {}
        self.order: list[int] = []

    def accept(self, index: int, grad: Tensor) -> None:
        self.registry.arrived(index)
        self.order.append(index)
        self.sums[index] = self.sums[index] + grad if index in self.sums else grad.clone()


class Harness:
    """A model compiled for a sink that keeps gradients, beside an untouched copy of it."""

    def __init__(self, model: nn.Module, lowering: str = "aot_eager") -> None:
        torch._dynamo.reset()  # it keeps code by code object, which models share
        self.model = model
        self.reference = copy.deepcopy(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.registry = StepRegistry(self.parameters)
        self.sink = Kept(self.registry)
        compile_in_place(model, lowering, self.registry, self.sink)

    def backward(self, run: Callable[[nn.Module], Tensor]) -> Tensor:
        loss = run(self.model)
        self.registry.expect(loss)
        loss.backward()
        return loss

    def check(self, run: Callable[[nn.Module], Tensor], tolerance: float = 0.0) -> None:
        """Compare what reached the sink, or else the parameter itself (uncompiled code), with autograd's."""
        self.backward(run)
        run(self.reference).backward()
        trained = (p for p in self.reference.parameters() if p.requires_grad)
        for index, (ours, reference) in enumerate(zip(self.parameters, trained, strict=True)):
            gradient = ours.grad if ours.grad is not None else self.sink.sums.get(index)
            torch.testing.assert_close(gradient, reference.grad, rtol=tolerance, atol=tolerance)


def check_dynamic_shapes(lowering: str, tolerance: float) -> None:
    """A model compiled for every length has eager gradients at two, with no new graph."""
    graphs = []
    with torch._dynamo.config.patch(assume_static_by_default=False):
        harness = Harness(models.Tied(), lowering)
        for length in (5, 7):
            tokens = models.tokens(length=length)
            harness.sink.sums.clear()
            harness.reference.zero_grad()
            harness.check(lambda model, tokens=tokens: model(tokens), tolerance)  # type: ignore[misc]
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] > 0


@pytest.mark.check
def test_shapes_may_be_dynamic_from_the_start() -> None:
    check_dynamic_shapes("aot_eager", 0.0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_that_dynamo_cannot_capture_run_uncompiled(reentrant: bool) -> None:
    harness = Harness(models.Checkpointed(broken=True, reentrant=reentrant))
    harness.check(lambda m: m(models.vectors()))
    assert harness.registry.foreseen is not reentrant


def test_a_forward_that_is_not_differentiated_counts_for_nothing() -> None:
    harness = Harness(models.Tied())
    harness.model(models.tokens(1))
    with torch.no_grad():
        harness.model(models.tokens(2))
    harness.check(lambda m: m(models.tokens()))
    assert not any(harness.registry._outstanding)


def test_two_forwards_in_one_loss_give_two_contributions() -> None:
    harness = Harness(models.WithoutReduction(1))
    harness.check(lambda m: m(models.vectors(1)) + m(models.vectors(2)))
    assert len(harness.sink.order) == 2 * len(harness.parameters)


def test_a_replaced_parameter_and_a_model_without_its_engine_are_refused() -> None:
    harness = Harness(models.Tied())
    model = harness.model
    harness.backward(lambda m: m(models.tokens()))
    weight = model.blocks[0].mix.weight
    model.blocks[0].mix.weight = nn.Parameter(torch.ones(models.WIDTH, models.WIDTH))
    with pytest.raises(UsageError, match="build a new engine"):
        model(models.tokens())
    model.blocks[0].mix.weight = weight
    del harness
    gc.collect()
    with pytest.raises(UsageError, match=r"engine\.close\(\)"):
        model(models.tokens())


def test_hooks_of_others_and_backward_outside_the_engine_are_refused() -> None:
    torch._dynamo.reset()
    model = nn.Linear(3, 2)
    with closing(build_engine(model, EngineSpec(zero_stage=1, compile="aot_eager"))) as engine:
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
