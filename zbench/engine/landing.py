"""Where the rank sums of gradients land: this rank's shard, or the whole flat gradient (stage 0).

`buffer` [shard.length] holds the sums in local order once `settle` has returned. A later backward of the
same step is added to what stands there.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.home import Home
from zbench.engine.partition import Bucket, Extent, Shard
from zbench.engine.protocols import Collectives, Work
from zbench.engine.sums import accumulate
from zbench.engine.transport.scratch import ScratchPool
from zbench.engine.transport.works import All, Done, Once, Then

_ARRIVING_AT_ONCE = 2


class Landing(Protocol):
    """Receives reduced buckets. Per backward: `begin`, then `target` and `landed` for each bucket, then
    `settle`.
    """

    buffer: Tensor

    def begin(self, *, first: bool, last: bool) -> None:
        """Start a backward that reduces: the `first` of a step overwrites, later ones add."""
        ...

    def target(self, bucket: Bucket) -> Tensor:
        """Return a float32 tensor whose first bucket.length / world_size elements the reduction writes."""
        ...

    def landed(self, bucket: Bucket, target: Tensor) -> Work | None:
        """Take over a finished reduction; return what to wait for if its sums are still on their way into
        `buffer`.
        """
        ...

    def settle(self) -> None:
        """Return when every sum stands in `buffer`."""
        ...

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        ...


class ShardLanding:
    """Keeps this rank's part of every sum, in `home`; sums of several backwards are rounded to `kept`."""

    def __init__(self, shard: Shard, home: Home, device: torch.device, kept: torch.dtype) -> None:
        self.shard, self.home, self.kept = shard, home, kept
        self.buffer = home.zeros(shard.length, torch.float32)
        self._near = home.device.type == device.type
        self._scratch = ScratchPool(device)
        self._first = True
        self._arriving: deque[tuple[Work, Tensor]] = deque()

    def begin(self, *, first: bool, last: bool) -> None:
        self._first = first

    def target(self, bucket: Bucket) -> Tensor:
        place = self._place(bucket)
        if self._first and self._near:
            return place
        return self._scratch.take(place.numel(), torch.float32)

    def landed(self, bucket: Bucket, target: Tensor) -> Work | None:
        if self._first and self._near:
            return None
        if len(self._arriving) >= _ARRIVING_AT_ONCE:
            self._finish_oldest()
        place = self._place(bucket)
        work = self._merge(target[: place.numel()], place)
        self._arriving.append((work, target))
        return None if self._near else work

    def settle(self) -> None:
        while self._arriving:
            self._finish_oldest()

    def bytes_by_category(self) -> dict[str, int]:
        return {f"{self.home.prefix}gradients": self.buffer.nbytes, "buckets": self._scratch.bytes}

    def _place(self, bucket: Bucket) -> Tensor:
        local = self.shard.local(Extent(bucket.start, bucket.length))
        return self.buffer[local.start : local.stop]

    def _merge(self, sums: Tensor, place: Tensor) -> Work:
        if self._first:
            return self.home.bring(sums, place)
        if self._near:
            self._add(place, sums)
            return Done()
        staging = self.home.zeros(sums.numel(), sums.dtype)
        return Once(Then(self.home.bring(sums, staging), partial(self._add, place, staging)))

    def _add(self, place: Tensor, sums: Tensor) -> None:
        total = place.to(self.kept)
        accumulate(total, sums)
        if total is not place:
            place.copy_(total)

    def _finish_oldest(self) -> None:
        work, scratch = self._arriving.popleft()
        work.wait()
        self._scratch.give(scratch)


class WholeLanding(ShardLanding):
    """Keeps the whole flat gradient: this rank's parts are reduced into it, the last backward gathers the
    others'.
    """

    def __init__(
        self, shard: Shard, home: Home, device: torch.device, kept: torch.dtype, comm: Collectives
    ) -> None:
        super().__init__(shard, home, device, kept)
        self._parts = Shard(shard.layout, comm.rank)
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
        self._gathers += [self._comm.all_gather(self.buffer[b.start : b.stop]) for b in blocks]

    def _place(self, bucket: Bucket) -> Tensor:
        (block,) = bucket.blocks
        piece = self._parts.piece(block)
        return self.buffer[piece.start : piece.stop]
