"""Where the rank sums of gradients land: this rank's shard, or the whole flat gradient (stage 0).

`sums` [shard.length] holds them in local order once `settle` has returned. A later backward of the same step
is added to what stands there.
"""

from collections import Counter, deque
from collections.abc import Sequence

import torch
from torch import Tensor

from zbench.engine.gradients.offloaded_sums import OffloadedSums
from zbench.engine.memory.buffers import FlatBuffer, MemoryLayout
from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.partition import Bucket, Extent, ShardLayout
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.transport.scratch import ScratchPool
from zbench.engine.transport.sums import accumulate
from zbench.engine.transport.works import All

_LEAVING_AT_ONCE = 2  # copies out of scratch memory


class ReducedGradientBuffer:
    """Holds this rank's part of every sum in the memories of `memory_layout`; each bucket lies in one memory.
    Sums of several backwards are rounded to `kept`.

    Per backward: `begin`, then `target` and `landed` for each bucket, then `settle`.
    """

    def __init__(
        self, shard: ShardLayout, memory_layout: MemoryLayout, device: torch.device, kept: torch.dtype
    ) -> None:
        self.shard, self.device, self.kept = shard, device, kept
        self.sums = memory_layout.zeros(torch.float32)
        self._scratch = ScratchPool(device)
        self._first = True
        self._offloaded: dict[Memory, OffloadedSums] = {}
        self._leaving: deque[tuple[Copy, Tensor]] = deque()

    def begin(self, *, first: bool, last: bool) -> None:
        """Start a backward that reduces: the `first` of a step overwrites, later ones add."""
        self._first = first

    def target(self, bucket: Bucket) -> Tensor:
        """Return a float32 tensor whose first bucket.length / world_size elements the reduction writes."""
        place = self._place(bucket)
        if self._first and self._is_local(bucket):
            return place
        return self._scratch.take(place.numel(), torch.float32)

    def landed(self, bucket: Bucket, target: Tensor) -> Work | None:
        """Take over a finished reduction; return what to wait for if the sums are still on their way into
        `sums`.
        """
        place = self._place(bucket)
        sums = target[: place.numel()]
        if not self._is_local(bucket):
            return self._offload(sums, place, self._flat(bucket).memory, target)
        if not self._first:
            self._add(place, sums)
            self._scratch.give(target)
        return None

    def settle(self) -> None:
        """Return when every sum stands in `sums`."""
        for offloaded in self._offloaded.values():
            offloaded.settle()
        self._let_go(keep=0)

    def close(self) -> None:
        """End what runs beside backward."""
        for offloaded in self._offloaded.values():
            offloaded.close()

    def drop(self) -> None:
        """The update has read the sums, or the step is forgotten."""

    def _free(self) -> None:
        """Free the memory under `sums` and all its views, and that of sums that were on their way."""
        for flat in self.sums.flats:
            flat.release()
        self._scratch.drop()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        held = Counter(self.sums.bytes_by_category("gradients"))
        for offloaded in self._offloaded.values():
            held.update(offloaded.bytes_by_category())
        return {**held, "buckets": self._scratch.bytes}

    def _flat(self, bucket: Bucket) -> FlatBuffer:
        local = self.shard.local(Extent(bucket.start, bucket.length))
        return self.sums.flat(local.start, local.length)

    def _is_local(self, bucket: Bucket) -> bool:
        return self._flat(bucket).memory.device.type == self.device.type

    def _place(self, bucket: Bucket) -> Tensor:
        local = self.shard.local(Extent(bucket.start, bucket.length))
        return self.sums.run(local.start, local.length)

    def _offload(self, sums: Tensor, place: Tensor, memory: Memory, target: Tensor) -> Work:
        self._let_go(keep=_LEAVING_AT_ONCE - 1)
        if memory not in self._offloaded:
            self._offloaded[memory] = OffloadedSums(memory, self._add)
        work, copy = self._offloaded[memory].bring(sums, place, first=self._first)
        self._leaving.append((copy, target))
        return work

    def _add(self, place: Tensor, sums: Tensor) -> None:
        total = place.to(self.kept)
        accumulate(total, sums)
        if total is not place:
            place.copy_(total)

    def _let_go(self, keep: int) -> None:
        """Take back the scratch memory that copies have left, until no more than `keep` are under way."""
        while len(self._leaving) > keep:
            copy, scratch = self._leaving.popleft()
            copy.release()
            self._scratch.give(scratch)


class TransientReducedGradientBuffer(ReducedGradientBuffer):
    """Has memory for a bucket's sums from its first reduction to the update only, so none while activations
    are at their height.
    """

    def __init__(
        self, shard: ShardLayout, memory_layout: MemoryLayout, device: torch.device, kept: torch.dtype
    ) -> None:
        local = (shard.local(Extent(b.start, b.length)) for b in shard.layout.buckets)
        super().__init__(shard, memory_layout.cut(local), device, kept)
        self.drop()

    def target(self, bucket: Bucket) -> Tensor:
        self._flat(bucket).bind()
        return super().target(bucket)

    def drop(self) -> None:
        self._free()


_SUMS = Tag("the reduced gradients")


class WholeReducedGradientBuffer(ReducedGradientBuffer):
    """Keeps the whole flat gradient: this rank's parts are reduced into it, the last backward gathers the
    others'.
    """

    def __init__(
        self,
        shard: ShardLayout,
        memory_layout: MemoryLayout,
        device: torch.device,
        kept: torch.dtype,
        comm: Collectives,
    ) -> None:
        super().__init__(shard, memory_layout, device, kept)
        self._parts = ShardLayout(shard.layout, comm.rank)
        self._comm = comm
        self._last = False
        self._gathers: list[Work] = []

    def begin(self, *, first: bool, last: bool) -> None:
        super().begin(first=first, last=last)
        self._last = last

    def landed(self, bucket: Bucket, target: Tensor) -> Work | None:
        super().landed(bucket, target)
        if self._last:
            super().settle()
            self._gather(bucket.blocks)
        return None

    def settle(self) -> None:
        super().settle()
        if not self._last:
            self._gather(self.shard.layout.blocks)
            self._last = True
        All(self._gathers).wait()
        self._gathers.clear()

    def _gather(self, blocks: Sequence[Extent]) -> None:
        self._gathers += [self._comm.all_gather(self.sums.run(b.start, b.length), _SUMS) for b in blocks]

    def _place(self, bucket: Bucket) -> Tensor:
        (block,) = bucket.blocks
        piece = self._parts.piece(block)
        return self.sums.run(piece.start, piece.length)
