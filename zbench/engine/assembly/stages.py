"""The stage table: which types hold the parameters, gradients and optimizer state at each ZeRO stage.

Only this file names a stage (Rajbhandari et al., 2020, arXiv:1910.02054). To follow a stage through the
engine, read its four types. The rest of the file makes the choices that depend on more than the stage.
"""

from dataclasses import dataclass

from zbench.engine.gradients.reduced_buffers import (
    ReducedGradientBuffer,
    TransientReducedGradientBuffer,
    WholeReducedGradientBuffer,
)
from zbench.engine.gradients.sinks import Gradients, ReplicatedGradients, ShardedGradients
from zbench.engine.parameters.replicated import ReplicatedParameters
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.shard_layout import ShardedLayout, WholeLayout
from zbench.spec.engine import EngineSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """One row of the table.

    parameters: what each rank holds of the parameters between their uses. gradients: what it accumulates them
    in between backwards. reduced_gradients: where it keeps their sums until the optimizer step.
    optimizer_state: which part of master weights and moments it holds and updates.
    """

    parameters: type[ReplicatedParameters | ShardedParameters]
    gradients: type[ReplicatedGradients | ShardedGradients]
    reduced_gradients: type[ReducedGradientBuffer]
    optimizer_state: type[WholeLayout | ShardedLayout]


# fmt: off
STAGES: dict[int, Stage] = {
    0: Stage(ReplicatedParameters, ReplicatedGradients, WholeReducedGradientBuffer,     WholeLayout),
    1: Stage(ReplicatedParameters, ReplicatedGradients, ReducedGradientBuffer,          ShardedLayout),
    2: Stage(ReplicatedParameters, ShardedGradients,    ReducedGradientBuffer,          ShardedLayout),
    3: Stage(ShardedParameters,    ShardedGradients,    TransientReducedGradientBuffer, ShardedLayout),
}
# fmt: on


def stage_of(spec: EngineSpec) -> Stage:
    """Return the row of the table that `spec` asks for."""
    return STAGES[spec.zero_stage]


def gradients_type(spec: EngineSpec) -> type[Gradients]:
    """Return what gradients are accumulated in: the stage's type, or what `reduce_at` asks for.

    A step of one backward reduces at its boundary in any case. With an offloaded optimizer and
    `each_backward` the sums are added up in host memory, part by part, as ZeRO-Offload does (Ren et al.,
    2021, arXiv:2101.06840).
    """
    one_backward = spec.accumulation_mode == "micro_steps" and spec.gradient_accumulation_steps == 1
    if one_backward or spec.reduce_at == "boundary":
        return ReplicatedGradients
    return stage_of(spec).gradients if spec.reduce_at == "auto" else ShardedGradients


def reduces_at_boundary(spec: EngineSpec) -> bool:
    """Return whether gradients are reduced once per step, and not in each backward."""
    return gradients_type(spec) is ReplicatedGradients


def reduced_gradients_type(spec: EngineSpec, shards: int) -> type[ReducedGradientBuffer]:
    """Return where reduced gradients are kept: the stage's type, but memory that cannot be freed between
    steps is kept. That is offloaded memory, and where there is one shard the buffer that backward itself
    writes.
    """
    chosen = stage_of(spec).reduced_gradients
    keeps_memory = shards == 1 or spec.offload_optimizer != "none"
    return ReducedGradientBuffer if keeps_memory and chosen is TransientReducedGradientBuffer else chosen
