"""Hybrid sharding: shards within groups of consecutive ranks, replicas across groups.

PyTorch calls it HSDP, DeepSpeed MiCS (Zhang et al., 2022, arXiv:2205.00119). Gathers, which are most of the
traffic at stage 3, stay within a group, such as one host. Every rank adds its shard of all ranks' gradients
in rank order, so the bits are those of a world without groups, and replicas stay equal without a message.
The price of that order: a rank receives its shard from every rank, W / N times what a group alone would send.
"""

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Tag, Work
from zbench.engine.transport.agreement import GATHERS
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.process_group import subgroup
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.errors import UsageError


class HybridCollectives:
    """`world` reduces into its `shards` shards; `group` gathers them, among the ranks of one shard group."""

    def __init__(self, world: GroupCollectives, group: GroupCollectives | SingleProcessCollectives) -> None:
        self.rank, self.world_size = world.rank, world.world_size
        self.shard, self.shards = world.shard, world.shards
        self.agreement = world.agreement
        self._world, self._group = world, group

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        return self._world.reduce_scatter(send, out, tag)

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
        """Return what the receive buffers of both hold now."""
        both = (self._world.bytes_by_category(), self._group.bytes_by_category())
        return {"buckets": sum(size for held in both for size in held.values())}

    def release_scratch(self) -> None:
        """Free the receive buffers that are not in use."""
        self._world.release_scratch()
        self._group.release_scratch()

    def close(self) -> None:
        """Release what was made for this engine alone."""
        self._world.close()
        self._group.close()


def check_shard_group_size(size: int, world_size: int) -> None:
    """Raise UsageError unless shard groups of `size` ranks fill the world."""
    if size < 1 or world_size % size:
        sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
        raise UsageError(
            f"shard_group_size: expected a size that divides the {world_size} ranks into equal groups"
            f" ({', '.join(map(str, sizes))}), got {size}"
        )


_SHARD_GROUPS: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, torch.device], dist.ProcessGroup]] = (
    WeakKeyDictionary()
)


def shard_group(group: dist.ProcessGroup, size: int, device: torch.device) -> dist.ProcessGroup:
    """Return the process group of this rank's shard group, for tensors of `device`; every rank of `group`
    calls it.

    It is made once and ends with `group`.
    """
    groups = _SHARD_GROUPS.setdefault(group, {})
    if (size, device) not in groups:
        groups[size, device] = subgroup(group, size, device)
    return groups[size, device]
