"""The stage table: which types hold the parameters, gradients and optimizer state at each ZeRO stage.

Only this file names a stage (Rajbhandari et al., 2020, arXiv:1910.02054). To follow a stage through the
engine, read its row. The rest of the file makes the choices that depend on more than the stage.
"""

from dataclasses import dataclass

from zbench.engine.gradients.gradients import Accumulate
from zbench.engine.gradients.storage import SumsMemory
from zbench.engine.parameters.replicated import ReplicatedParameters
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.shard_layout import ShardedLayout, WholeLayout
from zbench.spec.engine import EngineSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """One row of the table.

    parameters: what each rank holds of the parameters between their uses. gradients: what it adds them up as
    between backwards. sums: how long their rank sums have memory. optimizer_state: which part of sums, master
    weights and moments it holds and updates.
    """

    parameters: type[ReplicatedParameters | ShardedParameters]
    gradients: Accumulate
    sums: SumsMemory
    optimizer_state: type[WholeLayout | ShardedLayout]


# fmt: off
STAGES: dict[int, Stage] = {
    0: Stage(ReplicatedParameters, Accumulate.REPLICATED, SumsMemory.ENGINE, WholeLayout),
    1: Stage(ReplicatedParameters, Accumulate.REPLICATED, SumsMemory.ENGINE, ShardedLayout),
    2: Stage(ReplicatedParameters, Accumulate.SHARDED,    SumsMemory.ENGINE, ShardedLayout),
    3: Stage(ShardedParameters,    Accumulate.SHARDED,    SumsMemory.BUCKET, ShardedLayout),
}
# fmt: on


def stage_of(spec: EngineSpec) -> Stage:
    """Return the row of the table that `spec` asks for."""
    return STAGES[spec.zero_stage]


def accumulated_as(spec: EngineSpec) -> Accumulate:
    """Return what gradients are added up as: the stage's choice, or what `reduce_at` asks for.

    A step of one backward reduces at its boundary in any case. With an offloaded optimizer and
    `each_backward` the sums are added up in host memory, part by part, as ZeRO-Offload does (Ren et al.,
    2021, arXiv:2101.06840).
    """
    one_backward = spec.accumulation_mode == "micro_steps" and spec.gradient_accumulation_steps == 1
    if one_backward or spec.reduce_at == "boundary":
        return Accumulate.REPLICATED
    return stage_of(spec).gradients if spec.reduce_at == "auto" else Accumulate.SHARDED


def reduces_at_boundary(spec: EngineSpec) -> bool:
    """Return whether gradients are reduced once per step, and not in each backward."""
    return accumulated_as(spec) is Accumulate.REPLICATED


def sums_memory(spec: EngineSpec, shards: int) -> SumsMemory:
    """Return how long rank sums have memory: the stage's choice, but memory that cannot be freed between
    steps is kept. That is offloaded memory, and where there is one shard the buffer that backward itself
    writes. A compiled step frees all memory of gradients when it ends.
    """
    if spec.compile != "off":
        return SumsMemory.BUCKET
    keeps_memory = shards == 1 or spec.offload_optimizer != "none"
    return SumsMemory.ENGINE if keeps_memory else stage_of(spec).sums
