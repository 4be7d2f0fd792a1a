"""Reduced-gradient buffers: they hold the rank sums of gradients from the reduction to the optimizer step.

`sums` [shard.length] float32 holds them in local order once `settle` has returned. Each later backward of the
same step is added to it. A sum is written to its place by the reduction itself, or copied there from scratch
memory: that is what the sum writers are for.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from zbench.engine.memory.buffers import FlatBuffer, MemoryLayout, bytes_of
from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.partition import Bucket, Extent
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.shard_layout import ShardLayout
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.choose import Transport
from zbench.engine.transport.sums import accumulate
from zbench.engine.transport.works import All, QueuedWork, WorkerThread

_STAGED_AT_ONCE = 4
_SCRATCH_COPIES_AT_ONCE = 2

Add = Callable[[Tensor, Tensor], None]
"""Adds sums (second) to what is in a place (first)."""


@dataclass(frozen=True, slots=True)
class DtypePolicy:
    """Dtypes of gradients.

    parameters: the dtype of each dtype group. accumulation: the dtype in which several backwards are summed.
    communication: the dtype in which gradients are sent; None sends them as they are.
    """

    parameters: Sequence[torch.dtype]
    accumulation: torch.dtype
    communication: torch.dtype | None

    @property
    def communication_dtypes(self) -> list[torch.dtype]:
        """The dtype in which each dtype group is sent."""
        return [self.communication or dtype for dtype in self.parameters]

    @property
    def accumulating_rounds(self) -> bool:
        """Whether a single gradient changes when it is kept in the accumulation dtype."""
        return any(torch.promote_types(self.accumulation, d) != self.accumulation for d in self.parameters)


@dataclass(frozen=True, slots=True)
class ReductionConfig:
    """How gradients are reduced: by `collectives`, at most `in_flight` elements at a time, into this rank's
    `shard`. `transport` is what `collectives` wraps.
    """

    shard: ShardLayout
    memory_layout: MemoryLayout
    device: torch.device
    collectives: Collectives
    transport: Transport
    in_flight: int
    dtype_policy: DtypePolicy


class ReducedGradientBuffer:
    """Holds what this rank keeps of every sum, in the memories of `config.memory_layout`.

    Each bucket lies in one memory. Sums of several backwards are rounded to the accumulation dtype. Per
    backward: `begin`, then `target` and `store` for each bucket, then `settle`; per step: `release`.
    """

    def __init__(self, config: ReductionConfig) -> None:
        self.shard, self.device = config.shard, config.device
        self._accumulation_dtype = config.dtype_policy.accumulation
        self.sums = self._memory_layout(config).zeros(torch.float32)
        self._scratch = ScratchPool(config.device)
        memories = dict.fromkeys(flat.memory for flat in self.sums.flats)
        self._writers: dict[Memory, SumWriter] = {
            memory: DirectSums(self._scratch, self._add)
            if memory.device.type == config.device.type
            else OffloadedSums(memory, self._scratch, self._add)
            for memory in memories
        }
        self._first = True

    def begin(self, *, first: bool, last: bool) -> None:
        """Start a backward that reduces: the `first` of a step overwrites, later ones add."""
        self._first = first

    def target(self, bucket: Bucket) -> Tensor:
        """Return a float32 tensor whose first bucket.length / shards elements the reduction writes."""
        return self._writer(bucket).target(self._place(bucket), first=self._first)

    def store(self, bucket: Bucket, target: Tensor) -> Work | None:
        """Take over a finished reduction from `target`; return what to wait for, if its sums are not in
        `sums`.
        """
        return self._writer(bucket).write(target, self._place(bucket), first=self._first)

    def settle(self, *, discard: bool = False) -> None:
        """Return when every sum is in `sums`; to `discard` them, when nothing is in flight any more."""
        for writer in self._writers.values():
            writer.settle()

    def release(self) -> None:
        """Release the step's gradient memory, where it is not kept: the step was taken or discarded."""

    def close(self) -> None:
        """End what runs in the background."""
        for writer in self._writers.values():
            writer.close()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        staged = [writer.bytes_by_category() for writer in self._writers.values()]
        held = bytes_of([self.sums.bytes_by_category("gradients"), *staged])
        return {**held, "buckets": self._scratch.bytes}

    def _memory_layout(self, config: ReductionConfig) -> MemoryLayout:
        return config.memory_layout

    def _flat(self, bucket: Bucket) -> FlatBuffer:
        local = self.shard.local(bucket)
        return self.sums.flat(local.start, local.length)

    def _writer(self, bucket: Bucket) -> "SumWriter":
        return self._writers[self._flat(bucket).memory]

    def _place(self, bucket: Bucket) -> Tensor:
        local = self.shard.local(bucket)
        return self.sums.run(local.start, local.length)

    def _add(self, place: Tensor, sums: Tensor) -> None:
        total = place.to(self._accumulation_dtype)
        accumulate(total, sums)
        if total is not place:
            place.copy_(total)

    def _free(self) -> None:
        """Free the memory under `sums` and all its views, and the scratch buffers."""
        for flat in self.sums.flats:
            flat.release()
        self._scratch.drop()


class TransientReducedGradientBuffer(ReducedGradientBuffer):
    """Allocates memory for each bucket's sums at its first reduction and frees it after the optimizer step,
    so it holds none at the peak of activation memory.
    """

    def __init__(self, config: ReductionConfig) -> None:
        super().__init__(config)
        self.release()

    def target(self, bucket: Bucket) -> Tensor:
        self._flat(bucket).allocate()
        return super().target(bucket)

    def release(self) -> None:
        self._free()

    def _memory_layout(self, config: ReductionConfig) -> MemoryLayout:
        return config.memory_layout.cut(self.shard.local(bucket) for bucket in config.shard.layout.buckets)


_SUMS = Tag("the reduced gradients")


class WholeReducedGradientBuffer(ReducedGradientBuffer):
    """Keeps the whole flat gradient: this rank's parts are reduced into it, and the last backward gathers the
    other ranks' parts.
    """

    def __init__(self, config: ReductionConfig) -> None:
        super().__init__(config)
        self._collectives = config.collectives
        self._gathered = True  # or in `_gathers`: there is nothing yet
        self._gathers: list[Work] = []

    def begin(self, *, first: bool, last: bool) -> None:
        super().begin(first=first, last=last)
        self._gathered = last

    def store(self, bucket: Bucket, target: Tensor) -> Work | None:
        assert super().store(bucket, target) is None, "a whole gradient is on the device"
        if self._gathered:
            self._gather([bucket])
        return None

    def settle(self, *, discard: bool = False) -> None:
        if not self._gathered and not discard:
            self._gather(self.shard.layout.blocks)
            self._gathered = True
        All(self._gathers).wait()
        self._gathers.clear()

    def _gather(self, blocks: Sequence[Extent]) -> None:
        views = [self.sums.run(b.start, b.length) for b in blocks]
        self._gathers += [self._collectives.all_gather(view, _SUMS) for view in views]

    def _place(self, bucket: Bucket) -> Tensor:
        part = self.shard.part(bucket)
        return self.sums.run(part.start, part.length)


class SumWriter(ABC):
    """Writes the sums of one bucket after the other to their places, or adds them there."""

    @abstractmethod
    def target(self, place: Tensor, *, first: bool) -> Tensor:
        """Return what the reduction of the sums for `place` writes to, at least as long."""

    @abstractmethod
    def write(self, target: Tensor, place: Tensor, *, first: bool) -> Work | None:
        """Take reduced sums from `target`; return what to wait for until they are in `place`, if they are
        not.
        """

    def settle(self) -> None:
        """Return when all sums are in their places."""

    def close(self) -> None:
        """End what runs in the background."""

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        return {}


class DirectSums(SumWriter):
    """A reduction writes a step's first sums to their places; later ones are added from scratch memory."""

    def __init__(self, scratch: ScratchPool, add: Add) -> None:
        self._scratch, self._add = scratch, add

    def target(self, place: Tensor, *, first: bool) -> Tensor:
        return place if first else self._scratch.take(place.numel(), torch.float32)

    def write(self, target: Tensor, place: Tensor, *, first: bool) -> None:
        if not first:
            self._add(place, target[: place.numel()])
            self._scratch.give(target)


class OffloadedSums(SumWriter):
    """Copies sums to `memory` and adds them there; one thread completes them in the order in which they came.

    So when the work of one is done, every earlier addition to the same place is done, too.
    """

    def __init__(self, memory: Memory, scratch: ScratchPool, add: Add) -> None:
        """add: called on the thread."""
        self._memory, self._scratch, self._add = memory, scratch, add
        self._staging = ScratchPool(memory.device, memory)
        self._thread: WorkerThread | None = None
        self._works: deque[tuple[QueuedWork, Tensor | None]] = deque()
        self._scratch_copies: deque[tuple[Copy, Tensor]] = deque()

    def target(self, place: Tensor, *, first: bool) -> Tensor:
        return self._scratch.take(place.numel(), torch.float32)

    def write(self, target: Tensor, place: Tensor, *, first: bool) -> QueuedWork:
        self._reuse_scratch(keep=_SCRATCH_COPIES_AT_ONCE - 1)
        self._thread = self._thread or WorkerThread("offloaded sums")
        sums, buffer = target[: place.numel()], None
        if first and sums.dtype == place.dtype:
            copy = self._memory.copy_in(sums, place)
            work = self._thread.submit(copy.wait)
        else:
            while len(self._works) >= _STAGED_AT_ONCE:
                self._finish_oldest()
            buffer = self._staging.take(sums.numel(), sums.dtype)
            staged = buffer[: sums.numel()]
            copy = self._memory.copy_in(sums, staged)
            merge = Tensor.copy_ if first else self._add
            work = self._thread.submit(partial(_merge, copy, merge, place, staged))
        self._works.append((work, buffer))
        self._scratch_copies.append((copy, target))
        return work

    def settle(self) -> None:
        while self._works:
            self._finish_oldest()
        self._reuse_scratch(keep=0)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def bytes_by_category(self) -> dict[str, int]:
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
