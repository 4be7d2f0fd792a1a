"""Bucket buffers: the memory that gradients are written to and reduced from, one view per bucket."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from zbench.engine.memory.buffers import PartitionedBuffer
from zbench.engine.memory.kinds import Memory
from zbench.engine.partition import Layout, Portion
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.sums import accumulate


def runs(portions: Sequence[Portion], gradient: Tensor) -> Iterator[tuple[Portion, Tensor]]:
    """Yield each portion of a gradient (any strides), and the run of the gradient that it is."""
    if len(portions) == 1 and not gradient.is_contiguous():
        yield portions[0], gradient
        return
    flat = gradient.reshape(-1)
    for p in portions:
        yield p, flat.narrow(0, p.source, p.length)


class BucketBuffers(ABC):
    """Per bucket: `open` as often as needed, then `ready` and `close` once, or `discard`."""

    def __init__(self, layout: Layout) -> None:
        self.buckets = layout.buckets

    @abstractmethod
    def open(self, bucket: int) -> Tensor:
        """Return the buffer [bucket.length] to write gradients to; what no parameter fills is zero."""

    @abstractmethod
    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""

    def zero_copy(self, bucket: int, gradient: Tensor) -> bool:
        """Return whether `gradient`, which is the whole bucket, is reduced from its own memory; if not, write
        it to `open`.
        """
        return False

    def ready(self, bucket: int) -> Tensor:
        """Return the buffer to reduce, in the communication dtype."""
        return self.open(bucket)

    def close(self, bucket: int) -> None:
        """Reuse the buffer: it has been sent."""

    def discard(self, bucket: int) -> None:
        """Drop what was written to a bucket that will not be sent."""

    def release(self, *, used: bool) -> None:
        """Free every buffer that is taken from a pool; those that hold gradients only if `used`."""

    def write(self, p: Portion, source: Tensor, *, add: bool) -> None:
        """Write a run of a gradient to its place, or add it to what is there."""
        if add:
            accumulate(self._place(p).view(source.shape), source)
        elif not source.is_contiguous() or not self.zero_copy(p.bucket, source):
            self._place(p).view(source.shape).copy_(source)

    def clear(self, p: Portion) -> None:
        """Write zeros."""
        self._place(p).zero_()

    def _place(self, p: Portion) -> Tensor:
        return self.open(p.bucket).narrow(0, p.target, p.length)


class PooledBucketBuffers(BucketBuffers):
    """Takes a buffer from a pool at a bucket's first gradient and returns it after the reduction."""

    def __init__(self, layout: Layout, dtypes: Sequence[torch.dtype], pool: ScratchPool) -> None:
        super().__init__(layout)
        self.dtypes, self.pool = dtypes, pool
        self.gaps = [layout.gaps(bucket) for bucket in layout.buckets]
        self._used: dict[int, Tensor] = {}

    def open(self, bucket: int) -> Tensor:
        if bucket not in self._used:
            place = self.buckets[bucket]
            buffer = self._used[bucket] = self.pool.take(place.length, self.dtypes[place.dtype_group])
            for start, stop in self.gaps[bucket]:
                buffer[start:stop].zero_()
        return self._used[bucket][: self.buckets[bucket].length]

    def close(self, bucket: int) -> None:
        self.pool.give(self._used.pop(bucket))

    def discard(self, bucket: int) -> None:
        if bucket in self._used:
            self.close(bucket)

    def hand_over(self, bucket: int) -> Tensor:
        """Return an open buffer, which whoever gets it gives back to the pool."""
        return self._used.pop(bucket)

    def release(self, *, used: bool) -> None:
        for bucket in list(self._used) if used else ():
            self.close(bucket)
        self.pool.drop()

    def bytes_by_category(self) -> dict[str, int]:
        return {f"{self.pool.prefix}buckets": self.pool.bytes}


class PersistentBucketBuffers(BucketBuffers):
    """One flat buffer in bucket order, allocated when it is first needed and kept; it is sent as it is."""

    def __init__(self, layout: Layout, memory: Memory, dtype: torch.dtype) -> None:
        super().__init__(layout)
        self._length, self._memory, self._dtype = layout.length, memory, dtype
        self._flat: Tensor | None = None

    def open(self, bucket: int) -> Tensor:
        if self._flat is None:
            self._flat = self._memory.zeros(self._length, self._dtype)
        place = self.buckets[bucket]
        return self._flat.narrow(0, place.start, place.length)

    def bytes_by_category(self) -> dict[str, int]:
        held = 0 if self._flat is None else self._memory.occupied(self._flat.nbytes)
        return {f"{self._memory.prefix}gradients": held}


class InPlaceBucketBuffers(BucketBuffers):
    """The reduced-gradient buffer itself: a reduction reads and writes the same memory."""

    def __init__(self, layout: Layout, reduced_gradients: PartitionedBuffer) -> None:
        super().__init__(layout)
        self._reduced_gradients = reduced_gradients

    def open(self, bucket: int) -> Tensor:
        place = self.buckets[bucket]
        return self._reduced_gradients.run(place.start, place.length)

    def bytes_by_category(self) -> dict[str, int]:
        return {}


class CastBucketBuffers(BucketBuffers):
    """Gradients are written to `inner` and sent from `pooled`, in another dtype."""

    def __init__(self, layout: Layout, inner: BucketBuffers, pooled: BucketBuffers) -> None:
        super().__init__(layout)
        self._inner, self._pooled = inner, pooled

    def open(self, bucket: int) -> Tensor:
        return self._inner.open(bucket)

    def ready(self, bucket: int) -> Tensor:
        sent = self._pooled.open(bucket).copy_(self._inner.open(bucket))
        self._inner.close(bucket)
        return sent

    def close(self, bucket: int) -> None:
        self._pooled.close(bucket)

    def discard(self, bucket: int) -> None:
        self._inner.discard(bucket)
        self._pooled.discard(bucket)

    def release(self, *, used: bool) -> None:
        self._inner.release(used=used)
        self._pooled.release(used=used)

    def bytes_by_category(self) -> dict[str, int]:
        # the pool is that of a step with one backward, and counted there
        return self._inner.bytes_by_category()


class ZeroCopyBucketBuffers(BucketBuffers):
    """Sends a gradient that fills its bucket from autograd's own memory, without a copy; `inner` serves the
    others.
    """

    def __init__(self, layout: Layout, inner: BucketBuffers, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__(layout)
        self.inner, self.dtypes = inner, dtypes
        self._zero_copied: dict[int, Tensor] = {}

    def open(self, bucket: int) -> Tensor:
        return self.inner.open(bucket)

    def zero_copy(self, bucket: int, gradient: Tensor) -> bool:
        place = self.buckets[bucket]
        if gradient.numel() != place.length or gradient.dtype != self.dtypes[place.dtype_group]:
            return False
        self._zero_copied[bucket] = gradient
        return True

    def ready(self, bucket: int) -> Tensor:
        return self._zero_copied[bucket] if bucket in self._zero_copied else self.inner.ready(bucket)

    def close(self, bucket: int) -> None:
        if self._zero_copied.pop(bucket, None) is None:
            self.inner.close(bucket)

    def discard(self, bucket: int) -> None:
        if self._zero_copied.pop(bucket, None) is None:
            self.inner.discard(bucket)

    def release(self, *, used: bool) -> None:
        if used:
            self._zero_copied.clear()
        self.inner.release(used=used)

    def bytes_by_category(self) -> dict[str, int]:
        return self.inner.bytes_by_category()
