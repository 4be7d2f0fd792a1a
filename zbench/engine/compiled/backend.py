"""The torch.compile backend: compiles what dynamo captures, with reductions inside each backward graph."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, fx, nn

from zbench.engine.compiled.calls import GraphCall, ReductionPlan, find_backward, histories
from zbench.engine.compiled.graph_pass import reduce_in_graph
from zbench.engine.compiled.lowering import LOWERINGS, Lowering
from zbench.engine.compiled.registry import StepRegistry
from zbench.errors import UsageError

_T = TypeVar("_T")


class Sink(Protocol):
    """Takes the gradients that compiled graphs produce."""

    def accept(self, index: int, gradient: Tensor) -> None:
        """Take a contribution to parameter `index`'s gradient; it may be kept, and must not be changed."""


class ReducingBackend:
    """The backend of one model.

    Compiled code lives as long as dynamo keeps it, so the backend refers to objects of an engine weakly; they
    may change under code that remains (`direct`), even between a forward and its backward.
    """

    def __init__(self, lowering: Lowering) -> None:
        self._lower = lowering

    def direct(self, registry: StepRegistry, sink: Sink) -> None:
        """From now on, `registry` knows the parameters and `sink` takes their gradients."""
        self._registry, self._sink = weakref.ref(registry), weakref.ref(sink)

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one captured graph; dynamo lifts the parameters it uses to inputs."""
        registry = _alive(self._registry)
        known = [k for k, value in enumerate(inputs) if registry.index_of(value) is not None]
        plan = ReductionPlan(tuple(k for k in known if inputs[k].requires_grad))

        def edit(backward: fx.GraphModule) -> None:
            plan.reduced = reduce_in_graph(backward, plan.inputs)

        run = self._lower(graph, inputs, edit)
        return self._bind(run, plan) if plan.inputs else run

    def deliver(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Hand a contribution to `parameter`'s gradient to the sink."""
        index = _alive(self._registry).index_of(parameter)
        assert index is not None, "a graph was called with a parameter that is no longer trained"
        _alive(self._sink).accept(index, gradient)

    def _bind(self, run: Callable[..., Any], plan: ReductionPlan) -> Callable[..., Any]:
        """Return `run` so that every differentiable call remembers which parameters its inputs are."""

        def call(*args: Any) -> Any:
            if not torch.is_grad_enabled():
                return run(*args)
            parameters = self._parameters(plan, args)
            before = histories(args)
            results = run(*args)
            node = find_backward([*results, *args], before)
            if node is not None:
                GraphCall(self.deliver, plan, parameters).attach(node)
            return results

        return call

    def _parameters(self, plan: ReductionPlan, args: Sequence[Any]) -> dict[int, nn.Parameter]:
        registry = _alive(self._registry)
        parameters = {position: args[position] for position in plan.inputs}
        for parameter in parameters.values():
            if registry.index_of(parameter) is None:
                raise UsageError(
                    f"the compiled model uses a parameter, shape {tuple(parameter.shape)}, that the engine"
                    " does not know; expected those it had when the engine was built: build a new engine"
                    " after replacing parameters"
                )
        return parameters


def _alive(reference: "weakref.ref[_T]") -> _T:
    target = reference()
    if target is None:
        raise UsageError(
            "the model was compiled for an engine that no longer exists, and its gradients would be lost:"
            " keep the engine for as long as the model is trained, or call engine.close()"
        )
    return target


_backends: "weakref.WeakKeyDictionary[nn.Module, dict[str, ReducingBackend]]" = weakref.WeakKeyDictionary()


def compile_in_place(model: nn.Module, lowering: str, registry: StepRegistry, sink: Sink) -> None:
    """Make `model(...)` run compiled code whose gradients go to `sink`. lowering: a key of LOWERINGS.

    A model keeps its backend, so code that is compiled already is used again by its next engine.
    """
    backend = _backends.setdefault(model, {}).setdefault(lowering, ReducingBackend(LOWERINGS[lowering]))
    backend.direct(registry, sink)
    model.compile(backend=backend)


def undo_compile(model: nn.Module) -> None:
    """Make `model(...)` run its own Python code again."""
    model._compiled_call_impl = None
