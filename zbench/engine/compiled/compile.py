"""Builds compiled ZeRO-1: a model that is compiled in place, and the gradients that its graphs deliver."""

from collections.abc import Sequence
from functools import partial

from torch import nn

from zbench.engine.compiled.backend import compile_in_place, undo_compile
from zbench.engine.compiled.buffers import StepBufferFactory, StepReducedGradientBuffer
from zbench.engine.compiled.registry import StepRegistry
from zbench.engine.compiled.sink import CompiledGradients
from zbench.engine.gradients.reduced_buffers import ReductionConfig
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.parameters.base import ParamInfo


def compile_model(
    model: nn.Module, param_infos: Sequence[ParamInfo], config: ReductionConfig, lowering: str
) -> tuple[StepReducedGradientBuffer, CompiledGradients]:
    """Return the reduced-gradient buffer and the gradients of `model`, which `attach` compiles in place.

    `model(...)` remains the caller's way to run it. lowering: `aot_eager` or `inductor`.
    """
    reduced_gradients = StepReducedGradientBuffer(config)
    reducer = BucketReducer(config.collectives, reduced_gradients, in_flight=config.in_flight)
    registry = StepRegistry([t.parameter for t in param_infos])
    factory = StepBufferFactory(config, reduced_gradients.sums)
    buffers = factory.direct(accumulates=False), factory.accumulating(reducer.portions)
    switch = (
        partial(compile_in_place, model, lowering, registry),
        partial(undo_compile, model),
    )
    gradients = CompiledGradients(reducer, registry, buffers, config.transport, switch)
    return reduced_gradients, gradients
