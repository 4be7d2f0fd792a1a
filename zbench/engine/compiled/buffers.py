"""Gradient memory that belongs to a step: it is allocated when the step needs it and freed after it."""

from torch import Tensor

from zbench.engine.gradients.bucket_buffers import BucketBuffers, PooledBucketBuffers, ZeroCopyBucketBuffers
from zbench.engine.gradients.buffer_factory import BucketBufferFactory
from zbench.engine.gradients.config import ReductionConfig
from zbench.engine.gradients.reduced_buffers import TransientReducedGradientBuffer
from zbench.engine.memory.buffers import MemoryLayout, PartitionedBuffer
from zbench.engine.partition import Bucket


def step_buffers(config: ReductionConfig, sums: PartitionedBuffer) -> tuple[BucketBuffers, BucketBuffers]:
    """Return the bucket buffers of a step with one backward, and with several; all of them from pools."""
    layout, dtypes, factory = config.shard.layout, config.dtype_policy, BucketBufferFactory(config, sums)
    kept = [dtypes.accumulation] * len(dtypes.parameters)
    direct = ZeroCopyBucketBuffers(layout, factory.single_use, dtypes.communication_dtypes)
    return direct, factory.sent(PooledBucketBuffers(layout, kept, config.device))


class StepReducedGradientBuffer(TransientReducedGradientBuffer):
    """Allocates and frees the memory of all buckets at once, at the step's first reduction."""

    def target(self, bucket: Bucket) -> Tensor:
        for flat in self.sums.flats:
            if flat.allocate():
                flat.buffers[0].zero_()
        return super().target(bucket)

    def _memory_layout(self, config: ReductionConfig) -> MemoryLayout:
        return config.memory_layout
