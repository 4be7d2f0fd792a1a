"""Hybrid sharding: shards within groups of consecutive ranks, replicas across groups.

PyTorch calls it HSDP, DeepSpeed MiCS (Zhang et al., 2022, arXiv:2205.00119). Gathers, which are most of the
traffic at stage 3, stay within a group, such as one host. Gradients are added within each group, and then the
sums of each shard over the groups. So of a gradient's bytes only a share leaves a group, one over its size.
"""

from torch import Tensor

from zbench.engine.protocols import Tag, Work
from zbench.engine.transport.agreement import GATHERS, REDUCTIONS
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.engine.transport.works import Then
from zbench.errors import UsageError


class HybridCollectives:
    """`group`: the ranks of this rank's shard group, which reduce and gather. `across`: the ranks that keep
    the same shard, one of each group, in their order. `world`: all, for what concerns them all.
    """

    def __init__(
        self,
        world: GroupCollectives,
        group: GroupCollectives | SingleProcessCollectives,
        across: GroupCollectives,
    ) -> None:
        self.rank, self.world_size = world.rank, world.world_size
        self.shard, self.shards = group.rank, group.world_size
        self.agreement = world.agreement
        self._world, self._group, self._across = world, group, across
        parts = [part for part in (world, group, across) if isinstance(part, GroupCollectives)]
        for part in parts:  # where one of them cannot go on, the others cannot either
            part.agreement.joined += [other.agreement for other in parts if other is not part]

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self.agreement.note(REDUCTIONS, tag, send.nbytes)
        if self._across.in_rank_order or send.dtype == out.dtype:
            reduced = self._group.reduce_scatter(send, out, tag)
            return self._across.follow(reduced, lambda: self._across.all_reduce(out, tag))
        sums = self._across.scratch.lend(out.numel(), send.dtype)
        reduced = self._group.reduce_scatter(send, sums.buffer, tag)
        added = self._across.follow(reduced, lambda: self._add_across(sums.buffer, out, tag))
        return Then(added, sums.give_back)

    def _add_across(self, sums: Tensor, out: Tensor, tag: Tag) -> None:
        self._across.all_reduce(sums, tag)
        out.copy_(sums)

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        self.agreement.note(GATHERS, tag, flat.nbytes)  # replicas gather alike, too
        return self._group.all_gather(flat, tag)

    def gather_shards(self, values: Tensor, tag: Tag) -> Tensor:
        self.agreement.note(GATHERS, tag, values.nbytes)
        return self._group.all_gather_small(values, tag)

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        return self._world.all_gather_small(values, tag)

    def add_up(self, words: Tensor, tag: Tag) -> Tensor:
        return self._world.add_up(words, tag)

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Work:
        return self._world.broadcast(tensor, source, tag)

    def barrier(self) -> None:
        self._world.barrier()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what all receive buffers hold now."""
        held = [part.bytes_by_category() for part in (self._world, self._group, self._across)]
        return {"buckets": sum(size for each in held for size in each.values())}

    def release_scratch(self) -> None:
        """Free the receive buffers that are not in use."""
        for part in (self._world, self._group, self._across):
            part.release_scratch()

    def close(self) -> None:
        """Release what was made for this engine alone."""
        for part in (self._across, self._world, self._group):
            part.close()


def check_shard_group_size(size: int, world_size: int) -> None:
    """Raise UsageError unless shard groups of `size` ranks fill the world."""
    if size < 1 or world_size % size:
        sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
        raise UsageError(
            f"shard_group_size: expected a size that divides the {world_size} ranks into equal groups"
            f" ({', '.join(map(str, sizes))}), got {size}"
        )
