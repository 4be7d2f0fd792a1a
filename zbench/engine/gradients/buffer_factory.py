"""Chooses the bucket buffers that a step writes its gradients to; the kinds differ in what they copy and
keep.
"""

import torch

from zbench.engine.gradients.accumulators import (
    Accumulator,
    DirectAccumulator,
    OffloadedAccumulator,
    Portions,
)
from zbench.engine.gradients.bucket_buffers import (
    BucketBuffers,
    CastBucketBuffers,
    InPlaceBucketBuffers,
    PersistentBucketBuffers,
    PooledBucketBuffers,
    ZeroCopyBucketBuffers,
)
from zbench.engine.gradients.config import ReductionConfig
from zbench.engine.memory.buffers import PartitionedBuffer
from zbench.engine.memory.kinds import DeviceMemory, Memory
from zbench.engine.transport.buffers import ScratchPool


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
