"""Where the rank sums of gradients live, from their reduction to the optimizer step."""

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import partial

import torch
from torch import Tensor

from zbench.engine.memory.buffers import FlatBuffer, MemoryLayout, bytes_of
from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.partition import Bucket, Extent
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.shard_layout import ShardLayout
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.sums import accumulate
from zbench.engine.transport.works import All, QueuedWork, WorkerThread

_STAGED_AT_ONCE = 4
_SCRATCH_COPIES_AT_ONCE = 2
_GATHERED = Tag("the reduced gradients")


class SumsMemory(Enum):
    """How long the rank sums have memory."""

    ENGINE = auto()
    """As long as the engine."""
    STEP = auto()
    """From the first reduction of a step to the optimizer step."""
    BUCKET = auto()
    """From each bucket's first reduction to the optimizer step, so none at the peak of activation memory."""


class RankSums:
    """The rank sums of what this rank keeps: `sums` [shard.length] float32, in local order.

    Each later backward of a step is added; sums of several are rounded to the accumulation dtype. Where the
    rank keeps everything, its parts are reduced into it, and the last backward gathers those of other ranks.
    Per backward: `begin`, then `target` and `store` for each bucket, then `settle`; per step: `release`.
    """

    def __init__(
        self,
        shard: ShardLayout,
        memory_layout: MemoryLayout,
        device: torch.device,
        collectives: Collectives,
        accumulation_dtype: torch.dtype,
        lasts: SumsMemory,
    ) -> None:
        """device: that of the model. collectives: gather, where they must."""
        self.shard, self.device, self._lasts = shard, device, lasts
        self._collectives, self._accumulation_dtype = collectives, accumulation_dtype
        if lasts is SumsMemory.BUCKET:
            memory_layout = memory_layout.cut(shard.local(b) for b in shard.layout.buckets)
        self.sums = memory_layout.zeros(torch.float32)
        self._scratch = ScratchPool(device)
        far = {flat.memory for flat in self.sums.flats if flat.memory.device.type != device.type}
        self._far = {memory: HostSums(memory, self._scratch, self._add) for memory in far}
        self._has_others = shard.keeps_all and shard.layout.shards > 1
        self._first = self._gathered = True
        self._gathers: list[Work] = []
        self.release()

    @property
    def is_near(self) -> bool:
        """Whether the device itself can write all of them."""
        return not self._far

    def begin(self, *, first: bool, last: bool) -> None:
        """Start a backward that reduces: the `first` of a step overwrites, later ones add."""
        self._first, self._gathered = first, last or not self._has_others

    def target(self, bucket: Bucket) -> Tensor:
        """Return a float32 tensor whose first bucket.length / shards elements the reduction writes: the place
        of the sums, or scratch memory.
        """
        flat = self._flat(bucket)
        if self._lasts is SumsMemory.BUCKET:
            flat.allocate()
        if self._lasts is SumsMemory.STEP:
            for each in self.sums.flats:
                if each.allocate():
                    each.buffers[0].zero_()
        place, direct = self._place(bucket), self._first and flat.memory not in self._far
        return place if direct else self._scratch.take(place.numel(), torch.float32)

    def store(self, bucket: Bucket, target: Tensor) -> Work | None:
        """Take over a finished reduction from `target`; return what to wait for, if its sums are not in
        `sums`.
        """
        place, far = self._place(bucket), self._far.get(self._flat(bucket).memory)
        if far is not None:
            return far.add(target, place, first=self._first)
        if not self._first:
            self._add(place, target[: place.numel()])
            self._scratch.give(target)
        if self._has_others and self._gathered:
            self._gather([bucket])
        return None

    def settle(self, *, discard: bool = False) -> None:
        """Return when every sum is in `sums`; to `discard` them, when nothing is in flight any more."""
        if not self._gathered and not discard:
            self._gather(self.shard.layout.blocks)
        self._gathered = True
        All(self._gathers).wait()
        self._gathers.clear()
        for far in self._far.values():
            far.settle()

    def release(self) -> None:
        """Release the step's gradient memory, where it is not kept: the step was taken or discarded."""
        if self._lasts is not SumsMemory.ENGINE:
            for flat in self.sums.flats:
                flat.release()
            self._scratch.drop()

    def close(self) -> None:
        """End what runs in the background."""
        for far in self._far.values():
            far.close()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        staged = [far.bytes_by_category() for far in self._far.values()]
        held = bytes_of([self.sums.bytes_by_category("gradients"), *staged])
        return {**held, "buckets": self._scratch.bytes}

    def _flat(self, bucket: Bucket) -> FlatBuffer:
        local = self.shard.local(bucket)
        return self.sums.flat(local.start, local.length)

    def _place(self, bucket: Bucket) -> Tensor:
        part = self.shard.part(bucket) if self._has_others else self.shard.local(bucket)
        return self.sums.run(part.start, part.length)

    def _gather(self, blocks: Iterable[Extent]) -> None:
        views = [self.sums.run(b.start, b.length) for b in blocks]
        self._gathers += [self._collectives.all_gather(view, _GATHERED) for view in views]

    def _add(self, place: Tensor, sums: Tensor) -> None:
        total = place.to(self._accumulation_dtype)
        accumulate(total, sums)
        if total is not place:
            place.copy_(total)


class HostSums:
    """Copies sums to `memory` and adds them there; one thread completes them in the order in which they came.

    So when the work of one is done, every earlier addition to the same place is done, too.
    """

    def __init__(
        self, memory: Memory, scratch: ScratchPool, merge: Callable[[Tensor, Tensor], object]
    ) -> None:
        """scratch: where sources come from. merge: adds sums (second) to a place (first), on the thread."""
        self._memory, self._scratch, self._merge = memory, scratch, merge
        self._staging = ScratchPool(memory.device, memory)
        self._thread: WorkerThread | None = None
        self._works: deque[tuple[QueuedWork, Tensor | None]] = deque()
        self._scratch_copies: deque[tuple[Copy, Tensor]] = deque()

    def add(self, source: Tensor, place: Tensor, *, first: bool) -> QueuedWork:
        """Take the first elements of `source`, a buffer of `scratch`, for `place`; return what to wait for
        until they are there.
        """
        self._reuse_scratch(keep=_SCRATCH_COPIES_AT_ONCE - 1)
        self._thread = self._thread or WorkerThread("offloaded sums")
        sums, buffer = source[: place.numel()], None
        if first and sums.dtype == place.dtype:
            copy = self._memory.copy_in(sums, place)
            work = self._thread.submit(copy.wait)
        else:
            while len(self._works) >= _STAGED_AT_ONCE:
                self._finish_oldest()
            buffer = self._staging.take(sums.numel(), sums.dtype)
            staged = buffer[: sums.numel()]
            copy = self._memory.copy_in(sums, staged)
            merge = Tensor.copy_ if first else self._merge
            work = self._thread.submit(partial(_merge, copy, merge, place, staged))
        self._works.append((work, buffer))
        self._scratch_copies.append((copy, source))
        return work

    def settle(self) -> None:
        """Return when all sums are in their places."""
        while self._works:
            self._finish_oldest()
        self._reuse_scratch(keep=0)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        return {f"{self._memory.prefix}buckets": self._staging.bytes}

    def _finish_oldest(self) -> None:
        work, buffer = self._works.popleft()
        work.wait()
        if buffer is not None:
            self._staging.give(buffer)

    def _reuse_scratch(self, keep: int) -> None:
        """Return scratch memory to its pool when it has been copied, until at most `keep` copies
        are running.
        """
        while len(self._scratch_copies) > keep:
            copy, scratch = self._scratch_copies.popleft()
            copy.release()
            self._scratch.give(scratch)


def _merge(copy: Copy, merge: Callable[[Tensor, Tensor], object], place: Tensor, staged: Tensor) -> None:
    copy.wait()
    merge(place, staged)
