"""Reduced-gradient buffers: they hold the rank sums of gradients from the reduction to the optimizer step.

`sums` [shard.length] float32 holds them in local order once `settle` has returned. Each later backward of the
same step is added to it.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from zbench.engine.gradients.config import ReductionConfig
from zbench.engine.gradients.sum_writers import SumWriter, sum_writer
from zbench.engine.memory.buffers import FlatBuffer, MemoryLayout, bytes_of
from zbench.engine.partition import Bucket, Extent
from zbench.engine.protocols import Tag, Work
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.sums import accumulate
from zbench.engine.transport.works import All


class ReducedGradientBuffer:
    """Holds what this rank keeps of every sum, in the memories of `config.memory_layout`.

    Each bucket lies in one memory. Sums of several backwards are rounded to the accumulation dtype. Per
    backward: `begin`, then `target` and `store` for each bucket, then `settle`; per step: `release`.
    """

    buckets_in_flight: ClassVar[int] = 2

    def __init__(self, config: ReductionConfig) -> None:
        self.shard, self.device = config.shard, config.device
        self._accumulation_dtype = config.dtype_policy.accumulation
        self.sums = self._memory_layout(config).zeros(torch.float32)
        self._scratch = ScratchPool(config.device)
        memories = dict.fromkeys(flat.memory for flat in self.sums.flats)
        self._writers = {m: sum_writer(m, config.device, self._scratch, self._add) for m in memories}
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

    def settle(self) -> None:
        """Return when every sum is in `sums`."""
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

    def _local(self, bucket: Bucket) -> Extent:
        return self.shard.local(Extent(bucket.start, bucket.length))

    def _flat(self, bucket: Bucket) -> FlatBuffer:
        local = self._local(bucket)
        return self.sums.flat(local.start, local.length)

    def _writer(self, bucket: Bucket) -> SumWriter:
        return self._writers[self._flat(bucket).memory]

    def _place(self, bucket: Bucket) -> Tensor:
        local = self._local(bucket)
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
        return config.memory_layout.cut(self._local(bucket) for bucket in config.shard.layout.buckets)


_SUMS = Tag("the reduced gradients")


class WholeReducedGradientBuffer(ReducedGradientBuffer):
    """Keeps the whole flat gradient: this rank's parts are reduced into it, and the last backward gathers the
    other ranks' parts.
    """

    buckets_in_flight = 1  # fewer, because they come on top of the whole gradient

    def __init__(self, config: ReductionConfig) -> None:
        super().__init__(config)
        self._collectives = config.collectives
        self._last = False
        self._gathers: list[Work] = []

    def begin(self, *, first: bool, last: bool) -> None:
        super().begin(first=first, last=last)
        self._last = last

    def store(self, bucket: Bucket, target: Tensor) -> Work | None:
        assert super().store(bucket, target) is None, "a whole gradient is on the device"
        if self._last:
            self._gather(bucket.blocks)
        return None

    def settle(self) -> None:
        if not self._last:
            self._gather(self.shard.layout.blocks)
            self._last = True
        All(self._gathers).wait()
        self._gathers.clear()

    def _gather(self, blocks: Sequence[Extent]) -> None:
        views = [self.sums.run(b.start, b.length) for b in blocks]
        self._gathers += [self._collectives.all_gather(view, _SUMS) for view in views]

    def _place(self, bucket: Bucket) -> Tensor:
        (block,) = bucket.blocks
        part = self.shard.part(block)
        return self.sums.run(part.start, part.length)
