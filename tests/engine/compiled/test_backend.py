"""Compiled backward graphs deliver every gradient once, with the bits that autograd would have stored."""

import gc
import weakref
from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

from tests.engine.compiled import models
from tests.engine.compiled.harness import Harness, assert_same, shapes_are_dynamic
from zbench.engine import build_engine
from zbench.engine.compiled.backend import undo_compile
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "one_graph": (models.Tied, lambda m: m(models.tokens())),
    "two_graphs_share_a_parameter": (lambda: models.Tied(broken=True), lambda m: m(models.tokens())),
    "one_graph_for_many_layers": (models.Layers, lambda m: m(models.tokens())),
    "no_reduction_first": (lambda: models.WithoutReduction(0), lambda m: m(models.vectors())),
    "no_reduction_in_the_middle": (lambda: models.WithoutReduction(1), lambda m: m(models.vectors())),
    "no_reduction_last": (lambda: models.WithoutReduction(2), lambda m: m(models.vectors())),
    "partly_trained": (models.PartlyTrained, lambda m: m(models.vectors())),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_have_eager_bits(case: str) -> None:
    make, run = CASES[case]
    harness = Harness(make())
    for _ in range(2):
        harness.sink.sums.clear()
        harness.model.zero_grad()
        harness.backward(run)
    assert_same(harness.gradients(), harness.expected(run))
    compiled = set(harness.sink.order)
    assert compiled
    if case == "two_graphs_share_a_parameter":
        assert len(harness.sink.order) == 2 * (len(harness.parameters) + 1), "a contribution of each graph"
    assert all(harness.registry.outstanding(index) == 0 for index in compiled)


def test_new_sequence_lengths_recompile_and_stay_exact() -> None:
    harness = Harness(models.Tied(broken=True))
    for length in (6, 4, 9, 5):  # the second length makes dynamo compile once more, for every length

        def run(model: nn.Module, length: int = length) -> Tensor:
            return model(models.tokens(length=length))

        harness.sink.sums.clear()
        harness.reference.zero_grad()
        harness.backward(run)
        assert_same(harness.gradients(), harness.expected(run))


def test_shapes_may_be_dynamic_from_the_start() -> None:
    shapes_are_dynamic("aot_eager", 0.0)


def test_checkpoints_are_compiled_with_their_recomputation() -> None:
    harness = Harness(models.Checkpointed(broken=False, reentrant=False))
    harness.backward(lambda m: m(models.vectors()))
    assert_same(harness.gradients(), harness.expected(lambda m: m(models.vectors())))
    assert sorted(harness.sink.order) == list(range(len(harness.parameters)))


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
    assert all(harness.registry.outstanding(i) == 0 for i in range(len(harness.parameters)))
    assert_same(harness.gradients(), harness.expected(lambda m: m(models.tokens())))


def test_two_forwards_in_one_loss_give_two_contributions() -> None:
    harness = Harness(models.WithoutReduction(1))

    def run(model: nn.Module) -> Tensor:
        return model(models.vectors(1)) + model(models.vectors(2))

    harness.backward(run)
    assert len(harness.sink.order) == 2 * len(harness.parameters)
    assert_same(harness.gradients(), harness.expected(run))


def test_models_of_one_class_do_not_mix() -> None:
    first, second = Harness(models.Layers()), Harness(models.Layers())
    for harness in (first, second):
        harness.backward(lambda m: m(models.tokens()))
    for harness in (first, second):
        assert_same(harness.gradients(), harness.expected(lambda m: m(models.tokens())))
        assert len(harness.sink.order) == len(set(harness.sink.order))


def test_a_finished_engine_leaves_nothing_behind() -> None:
    harness = Harness(models.Layers())
    harness.backward(lambda m: m(models.tokens()))
    watched = [
        weakref.ref(o) for o in (harness.model, harness.registry, harness.sink, harness.parameters[-1])
    ]
    del harness
    gc.collect()
    assert [reference() for reference in watched] == [None] * 4


def test_an_uncompiled_model_runs_plain_again() -> None:
    harness = Harness(models.Tied())
    harness.backward(lambda m: m(models.tokens()))
    harness.sink.order.clear()
    undo_compile(harness.model)
    harness.model(models.tokens()).backward()
    assert harness.sink.order == []
    assert all(parameter.grad is not None for parameter in harness.parameters)


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
