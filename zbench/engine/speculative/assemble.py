"""From an optimizer to a schedule that runs it under the backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch.nn import Parameter

from zbench.engine.adam import NORM_CHUNK, AdamBackend
from zbench.engine.optimizer.shard_optimizer import ShardOptimizer
from zbench.engine.parameters.replicated import Parameters, ParamInfo
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.speculative.rollback import SHARE, DoubleBuffer, Journal, Rollback, RollbackTarget
from zbench.engine.speculative.schedule import Speculative, StepAssumptions
from zbench.engine.speculative.subgroups import Subgroup, cut
from zbench.engine.speculative.threads import threads_for
from zbench.engine.speculative.updates import Updates, written_by
from zbench.engine.speculative.worker import UpdateWorker


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """What may be set. sub_group_size: elements that one update covers at most."""

    sub_group_size: int
    threads: int | Literal["auto"]
    rollback: Literal["double_buffer", "journal"]


def speculate(
    optimizer: ShardOptimizer,
    backend: AdamBackend,
    parameters: Parameters,
    param_infos: Sequence[ParamInfo],
    assumptions: StepAssumptions,
    settings: SpeculationSettings,
) -> Speculative:
    """Return the speculative schedule of an optimizer whose state lives in CPU memory, or some of it.

    Its worker threads run until `close`.
    """
    shard = optimizer.shard
    subgroups = cut(shard, shard.layout.buckets, settings.sub_group_size)
    squares = torch.zeros(shard.length // NORM_CHUNK, dtype=torch.float64) if assumptions.norm else None
    held, moving = _held(optimizer, parameters, param_infos)
    ahead = [g for of_bucket in subgroups for g in of_bucket if _on_host(optimizer, g)]
    rollback: Rollback = DoubleBuffer(held, moving)
    if settings.rollback == "journal":
        ahead = _first(ahead, SHARE)
        runs = optimizer.runs([s for g in ahead for s in g.segments])
        rollback = Journal(held, (view for run in runs for view in written_by(run)))
    late = {g.index for of_bucket in subgroups for g in of_bucket} - {g.index for g in ahead}
    updates = Updates(optimizer, rollback, squares)
    device = param_infos[0].parameter.device if param_infos else torch.device("cpu")
    count, processors = threads_for(settings.threads, device, alone=shard.layout.world_size == 1)
    worker = UpdateWorker(count, processors, _SubgroupNames(subgroups, param_infos).describe)
    return Speculative(updates, worker, parameters, backend, subgroups, late, assumptions)


def _on_host(optimizer: ShardOptimizer, subgroup: Subgroup) -> bool:
    first = subgroup.segments[0]
    return bool(optimizer.gradients.flat(first.local, first.length).memory.prefix)


def _first(subgroups: Sequence[Subgroup], share: float) -> list[Subgroup]:
    """Return the subgroups that come first, of at most `share` of all elements."""
    sizes = [sum(s.length for s in g.segments) for g in subgroups]
    reached = accumulate(sizes)
    return [g for g, total in zip(subgroups, reached, strict=True) if total <= share * sum(sizes)]


def _held(
    optimizer: ShardOptimizer, parameters: Parameters, param_infos: Sequence[ParamInfo]
) -> tuple[list[RollbackTarget], list[Parameter]]:
    """Return what an update ahead may write, and the model's parameters that are views of it."""
    flats = [flat for masters in optimizer.masters for flat in masters.flats]
    flats += [flat for buffer in optimizer.moments.buffers for flat in buffer.flats]
    held = [RollbackTarget(flat, "host_speculative") for flat in flats if flat.memory.prefix]
    if not any(parameters.memory.device.type == h.holder.memory.device.type for h in held):
        return held, []
    held.append(RollbackTarget(parameters, f"{parameters.memory.prefix}speculative"))
    return held, [] if isinstance(parameters, ShardedParameters) else [t.parameter for t in param_infos]


class _SubgroupNames:
    """What a message calls a subgroup."""

    def __init__(self, subgroups: Sequence[Sequence[Subgroup]], param_infos: Sequence[ParamInfo]) -> None:
        self._subgroups = {g.index: g for of_bucket in subgroups for g in of_bucket}
        self._names = [t.name for t in param_infos]

    def describe(self, index: int) -> str:
        """Return its number and the parameters it begins and ends with."""
        segments = self._subgroups[index].segments
        first, last = (self._names[segments[k].parameter] for k in (0, -1))
        return f"subgroup {index} ({first} to {last})"
