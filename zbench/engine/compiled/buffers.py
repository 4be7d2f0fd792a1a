"""Gradient memory that belongs to a step: it is allocated when the step needs it and freed after it."""

from torch import Tensor

from zbench.engine.gradients.accumulators import BucketBufferFactory
from zbench.engine.gradients.bucket_buffers import BucketBuffers, PooledBucketBuffers, ZeroCopyBucketBuffers
from zbench.engine.gradients.reduced_buffers import ReductionConfig, TransientReducedGradientBuffer
from zbench.engine.memory.buffers import MemoryLayout
from zbench.engine.memory.kinds import Memory
from zbench.engine.partition import Bucket
from zbench.engine.transport.buffers import StagingPool


class StepBufferFactory(BucketBufferFactory):
    """Makes bucket buffers that are taken from pools, all of them."""

    def direct(self, *, accumulates: bool) -> BucketBuffers:
        return ZeroCopyBucketBuffers(self._layout, self.single_use, self._dtypes.communication_dtypes)

    def _kept(self, memory: Memory) -> BucketBuffers:
        kept = [self._dtypes.accumulation] * len(self._dtypes.parameters)
        return self.sent(PooledBucketBuffers(self._layout, kept, StagingPool(memory)))


class StepReducedGradientBuffer(TransientReducedGradientBuffer):
    """Allocates and frees the memory of all buckets at once, at the step's first reduction."""

    def target(self, bucket: Bucket) -> Tensor:
        for flat in self.sums.flats:
            if flat.allocate():
                flat.buffers[0].zero_()
        return super().target(bucket)

    def _memory_layout(self, config: ReductionConfig) -> MemoryLayout:
        return config.memory_layout
