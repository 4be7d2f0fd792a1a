"""Compiled backward graphs deliver every gradient once, with the bits that autograd would have stored."""

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

from tests.engine.compiled import models
from zbench.engine import build_engine
from zbench.engine.compiled.backend import compile_in_place, undo_compile
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
        self.model, self.reference = model, copy.deepcopy(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.registry = StepRegistry(self.parameters)
        self.sink = Kept(self.registry)
        compile_in_place(model, lowering, self.registry, self.sink)

    def backward(self, run: Callable[[nn.Module], Tensor]) -> Tensor:
        loss = run(self.model)
        self.registry.expect(loss)
        loss.backward()
        return loss

    def gradients(self) -> list[Tensor | None]:
        """Return what reached the sink, or else the parameter itself (uncompiled code)."""
        return [
            p.grad if p.grad is not None else self.sink.sums.get(i) for i, p in enumerate(self.parameters)
        ]

    def expected(self, run: Callable[[nn.Module], Tensor]) -> list[Tensor | None]:
        run(self.reference).backward()
        return [p.grad for p in self.reference.parameters() if p.requires_grad]


def assert_same(actual: list[Tensor | None], expected: list[Tensor | None]) -> None:
    assert [a is None for a in actual] == [e is None for e in expected]
    for a, e in zip(actual, expected, strict=True):
        if a is not None and e is not None:
            assert torch.equal(a, e)


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
    assert all(harness.registry.outstanding(index) == 0 for index in compiled)


def test_inductor_has_the_bits_of_plain_inductor() -> None:
    harness = Harness(models.Tied(broken=True), "inductor")
    run = CASES["two_graphs_share_a_parameter"][1]
    harness.backward(run)
    torch._dynamo.reset()
    harness.reference.compile()
    assert_same(harness.gradients(), harness.expected(run))
    assert len(harness.sink.order) == len(harness.parameters) + 1


def test_new_sequence_lengths_recompile_and_stay_exact() -> None:
    harness = Harness(models.Tied(broken=True))
    for length in (6, 4, 9, 5):  # the second length makes dynamo compile once more, for every length

        def run(model: nn.Module, length: int = length) -> Tensor:
            return model(models.tokens(length=length))

        harness.sink.sums.clear()
        harness.reference.zero_grad()
        harness.backward(run)
        assert_same(harness.gradients(), harness.expected(run))


@pytest.mark.parametrize(("lowering", "tolerance"), [("aot_eager", 0.0), ("inductor", 1e-5)])
def test_shapes_may_be_dynamic_from_the_start(lowering: str, tolerance: float) -> None:
    graphs = []
    with torch._dynamo.config.patch(assume_static_by_default=False):
        harness = Harness(models.Tied(), lowering)
        for length in (5, 7):

            def run(model: nn.Module, length: int = length) -> Tensor:
                return model(models.tokens(length=length))

            harness.sink.sums.clear()
            harness.reference.zero_grad()
            harness.backward(run)
            for actual, expected in zip(harness.gradients(), harness.expected(run), strict=True):
                torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] > 0


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


def test_a_gradient_may_be_kept_where_inductor_left_it() -> None:
    """Generated code hands freed buffers on to others; not those of gradients, which may still be sent."""
    harness = Harness(models.Tied(depth=4), "inductor")
    kept: list[tuple[Tensor, Tensor]] = []
    accept = harness.sink.accept

    def keep(index: int, gradient: Tensor) -> None:
        kept.append((gradient, gradient.clone()))
        accept(index, gradient)

    harness.sink.accept = keep  # type: ignore[method-assign]
    harness.backward(lambda m: m(models.tokens()))
    assert len(kept) == len(harness.parameters)
    for gradient, then in kept:
        assert torch.equal(gradient, then)


def test_inductor_computes_weights_gradients_in_autograds_order() -> None:
    """Buckets are sent in that order: a gradient that came late would hold up all that came before it."""
    orders = []
    for lowering in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        harness = Harness(models.Headed(), lowering)
        harness.backward(lambda m: m(models.tokens(length=24)))
        orders.append([i for i in harness.sink.order if harness.parameters[i].dim() > 1])
    assert orders[0] == orders[1]


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
