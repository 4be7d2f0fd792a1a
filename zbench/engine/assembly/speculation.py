"""Builds the speculative schedule of an optimizer."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from zbench.engine.adam import AdamBackend
from zbench.engine.adam.exact_sum import exact_zero
from zbench.engine.memory.buffers import FlatBuffer
from zbench.engine.optimizer.shard_optimizer import ShardOptimizer
from zbench.engine.optimizer.threads import threads_for
from zbench.engine.parameters.base import Parameters, ParamInfo
from zbench.engine.speculative.rollback import SHARE, DoubleBuffer, Journal, Rollback, RollbackTarget
from zbench.engine.speculative.schedule import Speculative, StepAssumptions
from zbench.engine.speculative.updates import LARGEST, Subgroup, Updates, cut, written_by
from zbench.engine.speculative.worker import UpdateWorker
from zbench.engine.transport.buffers import storage_of
from zbench.spec.engine import EngineSpec


def speculate(
    spec: EngineSpec,
    optimizer: ShardOptimizer,
    backend: AdamBackend,
    parameters: Parameters,
    assumptions: StepAssumptions,
    *,
    device_type: str,
    offloaded: int,
    alone: bool,
) -> Speculative:
    """Return the speculative schedule of an optimizer whose state is in CPU memory, or some of it.

    device_type: of the device whose largest subgroup is taken. offloaded: of so many buckets, the first to be
    reduced. alone: the world is one rank. Its worker threads run until `close`.
    """
    shard, param_infos = optimizer.shard, parameters.param_infos
    device = param_infos[0].parameter.device if param_infos else torch.device("cpu")
    largest = LARGEST[device_type]
    subgroups = cut(shard, shard.layout.buckets, min(spec.sub_group_size or largest, largest))
    squares = exact_zero() if assumptions.norm else None
    ahead = [g for of_bucket in subgroups[:offloaded] for g in of_bucket]
    if spec.rollback == "journal":
        ahead = _first(ahead, SHARE)
    runs = optimizer.runs([s for g in ahead for s in g.segments])
    written = [view for run in runs for view in written_by(run)]
    targets = _targets(optimizer, parameters, written)
    rollback: Rollback = (
        Journal(targets, written)
        if spec.rollback == "journal"
        else DoubleBuffer(targets, [t.parameter for t in param_infos])
    )
    updates = Updates(optimizer, parameters, rollback, squares)
    threads = threads_for(spec.optimizer_threads, device, alone=alone)
    by_index = {g.index: g for of_bucket in subgroups for g in of_bucket}
    late = by_index.keys() - {g.index for g in ahead}
    worker = UpdateWorker(threads.count, threads.processors, partial(_describe, by_index, param_infos))
    return Speculative(updates, worker, parameters, backend, subgroups, late, assumptions)


def _targets(
    optimizer: ShardOptimizer, parameters: Parameters, written: Sequence[Tensor]
) -> list[RollbackTarget]:
    """Return the holders of the buffers that speculative updates write; `written` are the views that they
    write.
    """
    holders: list[FlatBuffer | Parameters] = [flat for m in optimizer.masters for flat in m.flats]
    holders += [flat for buffer in optimizer.moments.buffers for flat in buffer.flats]
    holders.append(parameters)
    storages = {storage_of(view) for view in written}
    return [
        RollbackTarget(holder, f"{holder.memory.prefix}speculative")
        for holder in holders
        if any(storage_of(buffer) in storages for buffer in holder.buffers)
    ]


def _first(subgroups: Sequence[Subgroup], share: float) -> list[Subgroup]:
    """Return the first subgroups that have at most `share` of all elements together."""
    sizes = [sum(s.length for s in g.segments) for g in subgroups]
    reached = accumulate(sizes)
    return [g for g, total in zip(subgroups, reached, strict=True) if total <= share * sum(sizes)]


def _describe(subgroups: Mapping[int, Subgroup], param_infos: Sequence[ParamInfo], index: int) -> str:
    """Return a subgroup's number and its first and last parameter, for messages."""
    segments = subgroups[index].segments
    first, last = (param_infos[segments[k].parameter].name for k in (0, -1))
    return f"subgroup {index} ({first} to {last})"
