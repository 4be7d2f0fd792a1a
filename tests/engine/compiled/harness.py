"""A model compiled for a sink that keeps gradients, beside an untouched copy of it; no engine."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor, nn
from torch._inductor import config

from tests.engine.compiled import models
from zbench.engine.compiled.backend import compile_in_place
from zbench.engine.compiled.registry import StepRegistry


@contextmanager
def quick_inductor() -> Iterator[None]:
    """Have inductor not try what the processor can do (a dozen programs, 12 s where no cache is, and
    some are loaded in every process), and start no helpers, which import torch.
    """
    untried = mock.patch("torch.cpu._is_avx512_bf16_supported", return_value=False, create=True)
    with config.patch({"cpp.vec_isa_ok": True, "compile_threads": 1}), untried:
        yield


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


def shapes_are_dynamic(lowering: str, tolerance: float) -> None:
    """Assert that a model compiled for every length has eager gradients at two, with no new graph."""
    graphs = []
    with torch._dynamo.config.patch(assume_static_by_default=False):
        harness = Harness(models.Tied(), lowering)
        for length in (5, 7):

            def run(model: nn.Module, length: int = length) -> Tensor:
                loss: Tensor = model(models.tokens(length=length))
                return loss

            harness.sink.sums.clear()
            harness.reference.zero_grad()
            harness.backward(run)
            for actual, expected in zip(harness.gradients(), harness.expected(run), strict=True):
                torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] > 0
