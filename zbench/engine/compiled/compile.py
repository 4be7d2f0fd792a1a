"""Builds compiled ZeRO-1: a model that is compiled in place, and the gradients that its graphs deliver."""

from collections.abc import Sequence
from functools import partial

from torch import nn

from zbench.engine.compiled.backend import compile_in_place, undo_compile
from zbench.engine.compiled.registry import StepRegistry
from zbench.engine.compiled.sink import CompiledGradients, ReductionMemory
from zbench.engine.compiled.step_buffers import step_buffers
from zbench.engine.gradients.config import ReductionConfig
from zbench.engine.gradients.reduced_buffers import StepReducedGradientBuffer
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.parameters.replicated import ParamInfo


def compile_model(
    model: nn.Module, param_infos: Sequence[ParamInfo], config: ReductionConfig, lowering: str
) -> tuple[StepReducedGradientBuffer, CompiledGradients]:
    """Compile `model` in place; return its reduced-gradient buffer and its gradients.

    `model(...)` remains the caller's way to run it. lowering: `aot_eager` or `inductor`.
    """
    layout = config.shard.layout
    reduced_gradients = StepReducedGradientBuffer(config)
    dtype_policy = config.dtype_policy
    once, several = step_buffers(
        layout,
        config.device,
        sent=dtype_policy.communication_dtypes,
        kept=dtype_policy.accumulation,
        cast=dtype_policy.communication is not None,
    )
    reducer = BucketReducer(config.collectives, reduced_gradients, in_flight=config.in_flight)
    registry = StepRegistry([t.parameter for t in param_infos])
    memory = ReductionMemory(once, several, config.transport, reduced_gradients)
    gradients = CompiledGradients(reducer, registry, memory, partial(undo_compile, model))
    compile_in_place(model, lowering, registry, gradients)
    return reduced_gradients, gradients
