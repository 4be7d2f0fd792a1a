"""The torch.compile backend: compiles what dynamo captures, with reductions inside each backward graph."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from zbench.engine.compiled.calls import GraphCall, ReductionPlan, Sink, find_backward, histories
from zbench.engine.compiled.graph_pass import reduce_in_graph
from zbench.engine.compiled.lowering import Lowering
from zbench.engine.compiled.registry import StepRegistry
from zbench.errors import UsageError

_T = TypeVar("_T")


class ReducingBackend:
    """One engine's backend. Dynamo may keep it longer than the engine lives, so it refers to that weakly."""

    def __init__(self, lowering: Lowering, registry: StepRegistry, sink: Sink) -> None:
        self._lower = lowering
        self._registry, self._sink = weakref.ref(registry), weakref.ref(sink)

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one captured graph; dynamo lifts the parameters it uses to inputs."""
        registry = self._live(self._registry)
        known = [k for k, value in enumerate(inputs) if registry.index_of(value) is not None]
        plan = ReductionPlan(tuple(k for k in known if inputs[k].requires_grad))

        def edit(backward: fx.GraphModule) -> None:
            plan.positions = reduce_in_graph(backward, plan.positions)

        run = self._lower(graph, inputs, edit)
        return self._bind(run, plan) if plan.positions else run

    def _bind(self, run: Callable[..., Any], plan: ReductionPlan) -> Callable[..., Any]:
        """Return `run` so that every differentiable call remembers which parameters its positions are."""

        def call(*args: Any) -> Any:
            if not torch.is_grad_enabled():
                return run(*args)
            indices = self._indices(plan, args)
            before = histories(args)
            results = run(*args)
            node = find_backward([*results, *args], before)
            if node is not None:
                GraphCall(self._live(self._sink), plan, indices).attach(node)
            return results

        return call

    def _indices(self, plan: ReductionPlan, args: Sequence[Any]) -> dict[int, int]:
        registry = self._live(self._registry)
        indices = {position: registry.index_of(args[position]) for position in plan.positions}
        unknown = [position for position, index in indices.items() if index is None]
        if unknown:
            shape = tuple(args[unknown[0]].shape)
            raise UsageError(
                f"the compiled model uses a parameter, shape {shape}, that the engine does not know; expected"
                " those it had when the engine was built: build a new engine after replacing parameters"
            )
        return {position: index for position, index in indices.items() if index is not None}

    @staticmethod
    def _live(reference: "weakref.ref[_T]") -> _T:
        target = reference()
        if target is None:
            raise UsageError(
                "the model was compiled for an engine that no longer exists, and its gradients would be lost:"
                " keep the engine for as long as the model is trained, or call engine.close()"
            )
        return target


def compile_in_place(model: torch.nn.Module, backend: ReducingBackend) -> None:
    """Make `model(...)` run compiled code. Undone by `undo_compile`."""
    model.compile(backend=backend)


def undo_compile(model: torch.nn.Module) -> None:
    """Make `model(...)` run its own Python code again."""
    model._compiled_call_impl = None
