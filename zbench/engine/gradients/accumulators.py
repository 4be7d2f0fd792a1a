"""Where the gradients of a step's backwards are added up, on each rank, before they are reduced; and the
choice of the memory that a step writes its gradients to.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zbench.engine.gradients.bucket_buffers import (
    BucketBuffers,
    CastBucketBuffers,
    InPlaceBucketBuffers,
    PersistentBucketBuffers,
    PooledBucketBuffers,
    ZeroCopyBucketBuffers,
    runs,
)
from zbench.engine.gradients.reduced_buffers import DtypePolicy, OffloadedSums, ReductionConfig
from zbench.engine.memory.buffers import PartitionedBuffer, bytes_of
from zbench.engine.memory.kinds import Copy, DeviceMemory, Memory
from zbench.engine.partition import Layout, Portion
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.sums import accumulate

Portions = Sequence[Sequence[Portion]]
"""Of each parameter."""


class Accumulator(ABC):
    """Adds up gradients in order of backwards.

    Per backward that does not reduce: `add` once per parameter, then `finish`. Then `sums`, to reduce them.
    Per step: `clear`.
    """

    waits: bool
    """Whether a step's first gradients stay in autograd's memory until it is known that more will come: to
    save a copy, or because a step of one backward rounds nothing.
    """

    @abstractmethod
    def add(self, index: int, gradient: Tensor, *, first: bool) -> None:
        """Add parameter `index`'s gradient (its shape, any strides), or copy it if it is its `first`."""

    @abstractmethod
    def sums(self) -> BucketBuffers:
        """Return the bucket buffers that hold the sums, to add the last backward's gradients to and to
        reduce.
        """

    @abstractmethod
    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""

    def finish(self) -> None:
        """End a backward that does not reduce."""

    def clear(self) -> None:
        """Forget the sums: they have been reduced, or the step was discarded."""

    @abstractmethod
    def release(self, *, used: bool) -> None:
        """Free every buffer that is taken from a pool; those that hold gradients only if `used`."""

    def close(self) -> None:
        """End what runs in the background."""


class DirectAccumulator(Accumulator):
    """Adds gradients in the bucket buffers that they are reduced from."""

    def __init__(self, portions: Portions, buffers: BucketBuffers, *, waits: bool) -> None:
        self._portions, self._buffers, self.waits = portions, buffers, waits

    def add(self, index: int, gradient: Tensor, *, first: bool) -> None:
        for p, source in runs(self._portions[index], gradient):
            self._buffers.write(p, source, add=not first)

    def sums(self) -> BucketBuffers:
        return self._buffers

    def release(self, *, used: bool) -> None:
        self._buffers.release(used=used)

    def bytes_by_category(self) -> dict[str, int]:
        return self._buffers.bytes_by_category()


class OffloadedAccumulator(Accumulator):
    """Copies full buckets to offloaded memory and adds them there, as ZeRO-Offload does (Ren et al., 2021,
    arXiv:2101.06840). The last backward copies a bucket's sums back when it needs them.

    So the device holds a few buckets at a time, and no gradient between two backwards.
    """

    def __init__(
        self,
        layout: Layout,
        portions: Portions,
        dtypes: DtypePolicy,
        memory: Memory,
        pool: ScratchPool,
        sent: Callable[[BucketBuffers], BucketBuffers],
    ) -> None:
        """pool: of the buckets on the device; its owner counts it. sent: makes of buffers in the accumulation
        dtype those that are sent.
        """
        self._portions, self.waits = portions, dtypes.accumulating_rounds
        self._expected = Counter(p.bucket for of_one in portions for p in of_one)
        self._written: Counter[int] = Counter()
        self._arrived: set[int] = set()
        self._leaving = PooledBucketBuffers(layout, dtypes.parameters, pool)
        self._kept = PersistentBucketBuffers(layout, memory, dtypes.accumulation)
        self._writer = OffloadedSums(memory, pool, accumulate)
        same = [dtypes.accumulation] * len(dtypes.parameters)
        self._returning = ReturningBucketBuffers(layout, same, pool, memory, self._kept)
        self._sums = sent(self._returning)

    def add(self, index: int, gradient: Tensor, *, first: bool) -> None:
        self._arrived.add(index)
        for p, source in runs(self._portions[index], gradient):
            self._leaving.write(p, source, add=False)
            self._count(p)

    def finish(self) -> None:
        for index in set(range(len(self._portions))) - self._arrived:
            for p in self._portions[index]:
                if self._written[p.bucket]:  # others of its bucket came
                    self._leaving.clear(p)
                    self._count(p)
        self._arrived.clear()

    def sums(self) -> BucketBuffers:
        self._writer.settle()
        return self._sums

    def clear(self) -> None:
        for bucket in self._written:
            self._leaving.discard(bucket)
        self._written.clear()
        self._arrived.clear()
        self._writer.settle()
        self._returning.forget()

    def release(self, *, used: bool) -> None:
        self._sums.release(used=used)

    def close(self) -> None:
        self._writer.close()

    def bytes_by_category(self) -> dict[str, int]:
        return bytes_of([self._kept.bytes_by_category(), self._writer.bytes_by_category()])

    def _count(self, p: Portion) -> None:
        """Note that a portion was written; a full bucket leaves the device."""
        self._written[p.bucket] += 1
        if self._written[p.bucket] == self._expected[p.bucket]:
            del self._written[p.bucket]
            buffer, place = self._leaving.hand_over(p.bucket), self._kept.open(p.bucket)
            self._writer.write(buffer, place, first=p.bucket not in self._returning.held)
            self._returning.held.add(p.bucket)


class ReturningBucketBuffers(PooledBucketBuffers):
    """Pooled buffers that open with what `kept`, in `memory`, has of a bucket that is `held`."""

    def __init__(
        self,
        layout: Layout,
        dtypes: Sequence[torch.dtype],
        pool: ScratchPool,
        memory: Memory,
        kept: BucketBuffers,
    ) -> None:
        super().__init__(layout, dtypes, pool)
        self._memory, self._kept = memory, kept
        self.held: set[int] = set()
        self._copies: list[Copy] = []

    def open(self, bucket: int) -> Tensor:
        returns = bucket in self.held and bucket not in self._used
        buffer = super().open(bucket)
        if returns:
            copy = self._memory.copy_out(self._kept.open(bucket), buffer)
            copy.wait()
            self._copies.append(copy)
        return buffer

    def forget(self) -> None:
        """Hold nothing; return when the memory may be written again."""
        self.held.clear()
        for copy in self._copies:
            copy.release()
        self._copies.clear()


class BucketBufferFactory:
    """Makes the bucket buffers of one engine.

    sums: those of the reduced-gradient buffer; gradients are written there directly where that saves a copy.
    """

    def __init__(self, config: ReductionConfig, sums: PartitionedBuffer) -> None:
        self._config, self._sums = config, sums
        self._layout, self._dtypes = config.shard.layout, config.dtype_policy
        pool = ScratchPool(config.device)
        self.single_use = PooledBucketBuffers(self._layout, self._dtypes.communication_dtypes, pool)
        self._alone = config.collectives.world_size == 1
        self.writable = all(flat.memory.device.type == config.device.type for flat in sums.flats)

    def direct(self, *, accumulates: bool) -> BucketBuffers:
        """Return the buffers of a backward whose gradients are reduced at its end.

        accumulates: the sums of earlier backwards are in `sums` already, so gradients need other memory.
        """
        sent = self._dtypes.communication_dtypes
        if self._alone:  # nothing is sent
            return InPlaceBucketBuffers(self._layout, self._sums) if self.writable else self.single_use
        in_place = not accumulates and self._config.shard.keeps_all and set(sent) <= {torch.float32}
        inner: BucketBuffers = self.single_use
        if in_place and self.writable:
            inner = InPlaceBucketBuffers(self._layout, self._sums)
        return ZeroCopyBucketBuffers(self._layout, inner, sent)

    def accumulating(self, portions: Portions) -> Accumulator:
        """Return what adds up the gradients of several backwards before they are reduced: on the device, or
        in offloaded memory where any of the sums lie there.
        """
        memory, dtypes = self._memory(), self._dtypes
        if memory.device.type == self._config.device.type:
            waits = not memory.prefix or dtypes.accumulating_rounds
            return DirectAccumulator(portions, self._kept(memory), waits=waits)
        return OffloadedAccumulator(self._layout, portions, dtypes, memory, self.single_use.pool, self.sent)

    def _memory(self) -> Memory:
        offloaded = [flat.memory for flat in self._sums.flats if flat.memory.prefix]
        return offloaded[0] if offloaded else DeviceMemory(self._config.device)

    def _kept(self, memory: Memory) -> BucketBuffers:
        """Return bucket buffers in `memory` that keep their gradients from one backward to the next."""
        dtypes = self._dtypes
        exact = dtypes.accumulation == torch.float32 and dtypes.communication in (None, torch.float32)
        if exact and self._config.shard.keeps_all and self.writable:
            return InPlaceBucketBuffers(self._layout, self._sums)
        return self.sent(PersistentBucketBuffers(self._layout, memory, dtypes.accumulation))

    def sent(self, accumulating: BucketBuffers) -> BucketBuffers:
        """Return `accumulating`, but sent in the communication dtype."""
        if self._dtypes.communication in (None, self._dtypes.accumulation):
            return accumulating
        return CastBucketBuffers(self._layout, accumulating, self.single_use)
