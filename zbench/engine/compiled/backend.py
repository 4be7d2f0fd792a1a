"""The torch.compile backend: compiles what dynamo captures, with reductions inside each backward graph.

A captured graph becomes code by AOT autograd, the min-cut partitioner, and a compiler for each half.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from zbench.engine.compiled.graph_pass import reduce_in_graph
from zbench.engine.compiled.registry import GraphCall, ReductionPlan, StepRegistry, find_backward, histories
from zbench.engine.protocols import GradientSink
from zbench.errors import UsageError

_T = TypeVar("_T")
EditBackward = Callable[[fx.GraphModule], None]
Lowering = Callable[[fx.GraphModule, Sequence[Any], EditBackward], Callable[..., Any]]
"""Of a captured graph, example inputs, and an edit that changes the backward graph in place before it is
compiled (which may be as late as the first backward)."""


# Inductor takes a gradient for freed once its operator has run, but one in flight is still being read. So no
# buffer's memory is handed on to the next. And gradients are computed in autograd's order, that of the trace:
# by inductor's reckoning the head's weight, the first bucket of all, was best computed last, and every other
# gradient waited for it in memory, with nothing reduced under backward.
BACKWARD_OPTIONS = {"allow_buffer_reuse": False, "memory_planning": False, "reorder_for_peak_memory": False}


def lower_aot_eager(graph: fx.GraphModule, inputs: Sequence[Any], edit: EditBackward) -> Callable[..., Any]:
    """Run forward and backward with eager's own kernels: the same bits as the uncompiled model."""
    from torch._dynamo.backends.common import aot_autograd

    def forward(module: fx.GraphModule, _: Sequence[Any]) -> Any:
        return make_boxed_func(module)

    def backward(module: fx.GraphModule, _: Sequence[Any]) -> Any:
        edit(module)
        return make_boxed_func(module)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return backend(graph, inputs)


def lower_inductor(graph: fx.GraphModule, inputs: Sequence[Any], edit: EditBackward) -> Callable[..., Any]:
    """Lower both graphs with inductor: the partitioner, passes and kernels of a plain `torch.compile`.

    AOT autograd's cache is switched off, because its key does not see the edit. A plain `torch.compile` of
    the same model would be served this backward, whose gradients are None, even in another process.
    Inductor's own cache sees the edited graph and stays on.
    """
    from torch._functorch import config
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.utils import BoxedBool

    def compile_graph(module: fx.GraphModule, example: Sequence[Any], **options: Any) -> Any:
        if not options.get("is_backward"):
            return compile_fx_inner(module, example, **options)
        edit(module)
        with inductor_config.patch(BACKWARD_OPTIONS):
            return compile_fx_inner(module, example, **{**options, "cudagraphs": BoxedBool(False)})

    with config.patch(enable_autograd_cache=False):
        compiled: Callable[..., Any] = compile_fx(graph, inputs, inner_compile=compile_graph)  # type: ignore[assignment]
    return compiled


LOWERINGS: dict[str, Lowering] = {"aot_eager": lower_aot_eager, "inductor": lower_inductor}
"""By the value of the key `compile`."""


class ReducingBackend:
    """The backend of one model.

    Compiled code lives as long as dynamo keeps it, so the backend refers to objects of an engine weakly. The
    objects may change under code that remains (`direct`), even between a forward and its backward.
    """

    def __init__(self, lowering: Lowering) -> None:
        self._lower = lowering

    def direct(self, registry: StepRegistry, sink: GradientSink) -> None:
        """From now on, `registry` knows the parameters and `sink` takes their gradients."""
        self._registry, self._sink = weakref.ref(registry), weakref.ref(sink)

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one captured graph; dynamo lifts the parameters it uses to inputs."""
        registry = _alive(self._registry)
        places = [k for k, value in enumerate(inputs) if registry.index_of(value) is not None]
        plan = ReductionPlan(tuple(k for k in places if inputs[k].requires_grad))

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
            "the model was compiled for an engine that no longer exists, so gradients would be lost; keep"
            " the engine for as long as the model is trained, or call engine.close()"
        )
    return target


_backends: "weakref.WeakKeyDictionary[nn.Module, dict[str, ReducingBackend]]" = weakref.WeakKeyDictionary()


def compile_in_place(model: nn.Module, lowering: str, registry: StepRegistry, sink: GradientSink) -> None:
    """Make `model(...)` run compiled code whose gradients go to `sink`. lowering: a key of LOWERINGS.

    A model keeps its backend, so code that is compiled already is used again by its next engine.
    """
    backend = _backends.setdefault(model, {}).setdefault(lowering, ReducingBackend(LOWERINGS[lowering]))
    backend.direct(registry, sink)
    model.compile(backend=backend)


def undo_compile(model: nn.Module) -> None:
    """Make `model(...)` run its own Python code again."""
    model._compiled_call_impl = None
