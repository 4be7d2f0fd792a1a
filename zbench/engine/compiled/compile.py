"""Puts compiled ZeRO-1 together: a model compiled in place, and the gradients that its graphs deliver."""

from collections.abc import Sequence
from functools import partial

from torch import nn

from zbench.engine.compiled.backend import compile_in_place, undo_compile
from zbench.engine.compiled.registry import StepRegistry
from zbench.engine.compiled.sink import CompiledGradients, StepMemory
from zbench.engine.compiled.step_buffers import step_sends
from zbench.engine.compiled.targets import StepTargets
from zbench.engine.gradients.config import Route
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.parameters.replicated import Trainable
from zbench.engine.transport.single import SingleProcess


def compile_model(
    model: nn.Module, trainables: Sequence[Trainable], route: Route, lowering: str
) -> tuple[StepTargets, CompiledGradients]:
    """Compile `model` in place; return where its gradients land, and what brings them there.

    `model(...)` stays the caller's way to run it. lowering: `aot_eager` or `inductor`.
    """
    layout = route.shard.layout
    targets = StepTargets(route.shard, route.placement, route.device)
    wire = route.wire
    once, several = step_sends(
        layout, route.device, sent=wire.sent_sections, kept=wire.kept, cast=wire.sent is not None
    )
    scratch = [] if isinstance(route.moved, SingleProcess) else [route.moved.scratch]
    reducer = BucketReducer(route.collectives, targets, in_flight=route.in_flight)
    registry = StepRegistry([t.parameter for t in trainables])
    memory = StepMemory(once, several, scratch, targets)
    gradients = CompiledGradients(reducer, registry, memory, partial(undo_compile, model))
    compile_in_place(model, lowering, registry, gradients)
    return targets, gradients
