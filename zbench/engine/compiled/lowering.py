"""How a captured graph becomes code: AOT autograd, the min-cut partitioner, and a compiler for each half."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

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

    AOT autograd's cache is switched off: its key does not see the edit, so a plain `torch.compile` of the
    same model would be served this backward, whose gradients are None, even in another process. Inductor's
    own cache sees the edited graph and stays on.
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
