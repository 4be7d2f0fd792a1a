"""From an optimizer to a schedule that runs it under the backward pass."""

from collections.abc import Sequence
from typing import Literal

import torch

from zbench.engine.adam import NORM_CHUNK, AdamBackend
from zbench.engine.optimizer import ShardOptimizer
from zbench.engine.parameters import Parameters, Trainable
from zbench.engine.sharded import ShardedParameters
from zbench.engine.speculative.halves import Halves, Holder
from zbench.engine.speculative.schedule import Knowledge, Speculative
from zbench.engine.speculative.subgroups import Subgroup, cut
from zbench.engine.speculative.threads import threads_for
from zbench.engine.speculative.updates import Updates
from zbench.engine.speculative.worker import Worker


def speculate(
    optimizer: ShardOptimizer,
    backend: AdamBackend,
    parameters: Parameters,
    trainables: Sequence[Trainable],
    knowledge: Knowledge,
    sub_group_size: int,
    threads: int | Literal["auto"],
) -> Speculative:
    """Return the speculative schedule of an optimizer whose state lives in CPU memory.

    Its worker threads run until `close`.
    """
    shard = optimizer.shard
    subgroups = cut(shard, shard.layout.buckets, sub_group_size)
    squares = torch.zeros(shard.length // NORM_CHUNK, dtype=torch.float64) if knowledge.norm else None
    updates = Updates(optimizer, _halves(optimizer, parameters, trainables), squares)
    device = trainables[0].parameter.device if trainables else torch.device("cpu")
    count, processors = threads_for(threads, device, alone=shard.layout.world_size == 1)
    worker = Worker(count, processors, _Names(subgroups, trainables).describe)
    return Speculative(updates, worker, parameters, backend, subgroups, knowledge)


def _halves(optimizer: ShardOptimizer, parameters: Parameters, trainables: Sequence[Trainable]) -> Halves:
    state: list[Holder] = [*optimizer.masters, optimizer.moments]
    holders = [(holder, "host_speculative") for holder in state]
    if isinstance(parameters, ShardedParameters):
        if parameters.home.device.type == "cpu":
            holders.append((parameters, f"{parameters.home.prefix}speculative"))
        return Halves(holders, ())
    if parameters.buffers[0].device.type == "cpu":
        holders.append((parameters, "speculative"))
    return Halves(holders, [t.parameter for t in trainables])


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
