"""What every kind of bucket buffers promises."""

from abc import ABC, abstractmethod

import torch

from tests.engine.gradients.worlds import CPU, layout_for
from zbench.engine.gradients.bucket_buffers import (
    BucketBuffers,
    CastBucketBuffers,
    InPlaceBucketBuffers,
    PersistentBucketBuffers,
    PooledBucketBuffers,
    ZeroCopyBucketBuffers,
)
from zbench.engine.memory.buffers import memory_layout_of
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.shard_layout import ShardedLayout, WholeLayout
from zbench.engine.transport.buffers import ScratchPool

LAYOUT = layout_for(ShardedLayout)
F32 = [torch.float32]


class BucketBuffersSuite(ABC):
    """Inherited by the test of each implementation."""

    sent = torch.float32
    pooled = False

    @abstractmethod
    def make(self) -> BucketBuffers: ...

    def test_a_bucket_has_its_length_and_zeros_where_no_parameter_is(self) -> None:
        buffers = self.make()
        for bucket in buffers.buckets:
            opened = buffers.open(bucket.index)
            assert opened.shape == (bucket.length,)
            for start, stop in LAYOUT.gaps(bucket):
                assert not opened[start:stop].any()

    def test_what_is_written_is_what_is_reduced(self) -> None:
        buffers = self.make()
        for bucket in buffers.buckets:
            values = torch.arange(bucket.length).remainder(64).float()
            buffers.open(bucket.index).copy_(values)
            buffers.open(bucket.index)[0] += 1.0  # an open buffer keeps its values
            ready = buffers.ready(bucket.index)
            assert ready.dtype == self.sent
            values[0] += 1.0
            assert torch.equal(ready.float(), values)
            buffers.close(bucket.index)

    def test_a_bucket_can_be_used_again_after_close_and_discard(self) -> None:
        buffers = self.make()
        for end in ("close", "discard", "close"):
            for bucket in buffers.buckets:
                opened = buffers.open(bucket.index)
                opened[:8] = 3.0
                assert torch.equal(buffers.ready(bucket.index)[:8].float(), torch.full((8,), 3.0))
                getattr(buffers, end)(bucket.index)

    def test_a_bucket_that_was_never_opened_can_be_discarded(self) -> None:
        buffers = self.make()
        buffers.discard(0)
        assert not buffers.open(0)[LAYOUT.gaps(buffers.buckets[0])[0][0]].any()

    def test_release_leaves_no_pooled_memory(self) -> None:
        buffers = self.make()
        for bucket in buffers.buckets:
            buffers.open(bucket.index)
        assert all(held >= 0 for held in buffers.bytes_by_category().values())
        buffers.release(used=True)
        assert not self.pooled or sum(buffers.bytes_by_category().values()) == 0


class TestPooled(BucketBuffersSuite):
    pooled = True

    def make(self) -> BucketBuffers:
        return PooledBucketBuffers(LAYOUT, F32, ScratchPool(CPU))

    def test_unused_memory_is_released_and_used_memory_is_not(self) -> None:
        buffers = self.make()
        first, second = buffers.buckets[:2]
        buffers.open(first.index)
        buffers.open(second.index)
        buffers.close(first.index)
        buffers.release(used=False)
        assert buffers.bytes_by_category() == {"buckets": second.length * 4}


class TestPersistent(BucketBuffersSuite):
    def make(self) -> BucketBuffers:
        return PersistentBucketBuffers(LAYOUT, DeviceMemory(CPU), torch.float32)


class TestInPlace(BucketBuffersSuite):
    def make(self) -> BucketBuffers:
        shard = WholeLayout(LAYOUT, 0)
        memories = memory_layout_of(shard, 0, DeviceMemory(CPU), DeviceMemory(CPU))
        return InPlaceBucketBuffers(LAYOUT, memories.zeros(torch.float32))


class TestCast(BucketBuffersSuite):
    sent = torch.bfloat16

    def make(self) -> BucketBuffers:
        inner = PersistentBucketBuffers(LAYOUT, DeviceMemory(CPU), torch.float32)
        return CastBucketBuffers(
            LAYOUT, inner, PooledBucketBuffers(LAYOUT, [torch.bfloat16], ScratchPool(CPU))
        )


class TestCastFromAPool(BucketBuffersSuite):
    sent, pooled = torch.bfloat16, True

    def make(self) -> BucketBuffers:
        inner = PooledBucketBuffers(LAYOUT, F32, ScratchPool(CPU))
        return CastBucketBuffers(
            LAYOUT, inner, PooledBucketBuffers(LAYOUT, [torch.bfloat16], ScratchPool(CPU))
        )


class TestZeroCopy(BucketBuffersSuite):
    pooled = True

    def make(self) -> BucketBuffers:
        return ZeroCopyBucketBuffers(LAYOUT, PooledBucketBuffers(LAYOUT, F32, ScratchPool(CPU)), F32)

    def test_a_gradient_that_fills_its_bucket_is_sent_from_its_own_memory(self) -> None:
        buffers = self.make()
        bucket = buffers.buckets[0]
        whole = torch.ones(bucket.length)
        assert buffers.zero_copy(0, whole)
        assert buffers.ready(0).data_ptr() == whole.data_ptr()
        assert buffers.bytes_by_category() == {"buckets": 0}
        buffers.close(0)
        assert not buffers.zero_copy(0, torch.ones(bucket.length - 1))
        assert not buffers.zero_copy(0, torch.ones(bucket.length, dtype=torch.bfloat16))
        assert buffers.open(0).data_ptr() != whole.data_ptr()
