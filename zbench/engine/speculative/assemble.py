"""From an optimizer to a schedule that runs it under the backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch.nn import Parameter

from zbench.engine.adam import NORM_CHUNK, AdamBackend
from zbench.engine.optimizer.shard_optimizer import ShardOptimizer
from zbench.engine.parameters.replicated import Parameters, Trainable
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.speculative.rollback import SHARE, Halves, Held, Journal, Rollback
from zbench.engine.speculative.schedule import Knowledge, Speculative
from zbench.engine.speculative.subgroups import Subgroup, cut
from zbench.engine.speculative.threads import threads_for
from zbench.engine.speculative.updates import Updates, written_by
from zbench.engine.speculative.worker import Worker


@dataclass(frozen=True, slots=True)
class Settings:
    """What may be set. sub_group_size: elements that one update covers at most."""

    sub_group_size: int
    threads: int | Literal["auto"]
    rollback: Literal["double_buffer", "journal"]


def speculate(
    optimizer: ShardOptimizer,
    backend: AdamBackend,
    parameters: Parameters,
    trainables: Sequence[Trainable],
    knowledge: Knowledge,
    settings: Settings,
) -> Speculative:
    """Return the speculative schedule of an optimizer whose state lives in CPU memory, or some of it.

    Its worker threads run until `close`.
    """
    shard = optimizer.shard
    subgroups = cut(shard, shard.layout.buckets, settings.sub_group_size)
    squares = torch.zeros(shard.length // NORM_CHUNK, dtype=torch.float64) if knowledge.norm else None
    held, moving = _held(optimizer, parameters, trainables)
    ahead = [g for of_bucket in subgroups for g in of_bucket if _on_host(optimizer, g)]
    rollback: Rollback = Halves(held, moving)
    if settings.rollback == "journal":
        ahead = _first(ahead, SHARE)
        runs = optimizer.runs([s for g in ahead for s in g.segments])
        rollback = Journal(held, (view for run in runs for view in written_by(run)))
    late = {g.index for of_bucket in subgroups for g in of_bucket} - {g.index for g in ahead}
    updates = Updates(optimizer, rollback, squares)
    device = trainables[0].parameter.device if trainables else torch.device("cpu")
    count, processors = threads_for(settings.threads, device, alone=shard.layout.world_size == 1)
    worker = Worker(count, processors, _Names(subgroups, trainables).describe)
    return Speculative(updates, worker, parameters, backend, subgroups, late, knowledge)


def _on_host(optimizer: ShardOptimizer, subgroup: Subgroup) -> bool:
    first = subgroup.segments[0]
    return bool(optimizer.gradients.flat(first.local, first.length).home.prefix)


def _first(subgroups: Sequence[Subgroup], share: float) -> list[Subgroup]:
    """Return the subgroups that come first, of at most `share` of all elements."""
    sizes = [sum(s.length for s in g.segments) for g in subgroups]
    reached = accumulate(sizes)
    return [g for g, total in zip(subgroups, reached, strict=True) if total <= share * sum(sizes)]


def _held(
    optimizer: ShardOptimizer, parameters: Parameters, trainables: Sequence[Trainable]
) -> tuple[list[Held], list[Parameter]]:
    """Return what an update ahead may write, and the model's parameters that are views of it."""
    flats = [flat for masters in optimizer.masters for flat in masters.flats]
    flats += [flat for spread in optimizer.moments.spreads for flat in spread.flats]
    held = [Held(flat, "host_speculative") for flat in flats if flat.home.prefix]
    if isinstance(parameters, ShardedParameters):
        if parameters.home.device.type == "cpu":
            held.append(Held(parameters, f"{parameters.home.prefix}speculative"))
        return held, []
    if parameters.buffers[0].device.type == "cpu":
        held.append(Held(parameters, "speculative"))
    return held, [t.parameter for t in trainables]


class _Names:
    """What a message calls a subgroup."""

    def __init__(self, subgroups: Sequence[Sequence[Subgroup]], trainables: Sequence[Trainable]) -> None:
        self._subgroups = {g.index: g for of_bucket in subgroups for g in of_bucket}
        self._names = [t.name for t in trainables]

    def describe(self, index: int) -> str:
        """Return its number and the parameters it begins and ends with."""
        segments = self._subgroups[index].segments
        first, last = (self._names[segments[k].parameter] for k in (0, -1))
        return f"subgroup {index} ({first} to {last})"
