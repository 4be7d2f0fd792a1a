"""Chooses the bucket buffers that a step writes its gradients to; the kinds differ in what they copy and
keep.
"""

from functools import partial

import torch

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


class BucketBufferFactory:
    """Makes the bucket buffers of one engine.

    sums: those of the reduced-gradient buffer; gradients are written there directly where that saves a copy.
    """

    def __init__(self, config: ReductionConfig, sums: PartitionedBuffer) -> None:
        self._config, self._sums = config, sums
        self._layout, self._dtypes = config.shard.layout, config.dtype_policy
        self.single_use = PooledBucketBuffers(self._layout, self._dtypes.communication_dtypes, config.device)
        self._alone = config.collectives.world_size == 1
        self._writable = all(flat.memory.device.type == config.device.type for flat in sums.flats)

    def direct(self, *, accumulates: bool) -> BucketBuffers:
        """Return the buffers of a backward whose gradients are reduced at its end.

        accumulates: the sums of earlier backwards are in `sums` already, so gradients need other memory.
        """
        sent = self._dtypes.communication_dtypes
        if self._alone:  # nothing is sent
            return InPlaceBucketBuffers(self._layout, self._sums) if self._writable else self.single_use
        in_place = not accumulates and self._config.shard.keeps_all and set(sent) <= {torch.float32}
        inner: BucketBuffers = self.single_use
        if in_place and self._writable:
            inner = InPlaceBucketBuffers(self._layout, self._sums)
        return ZeroCopyBucketBuffers(self._layout, inner, sent)

    def accumulating(self) -> BucketBuffers:
        """Return the buffers in which the gradients of several backwards are summed before they are sent."""
        dtypes = self._dtypes
        exact = dtypes.accumulation == torch.float32 and dtypes.communication in (None, torch.float32)
        if exact and self._config.shard.keeps_all and self._writable:
            return InPlaceBucketBuffers(self._layout, self._sums)
        make = partial(
            torch.zeros, self._layout.length, dtype=dtypes.accumulation, device=self._config.device
        )
        return self.sent(PersistentBucketBuffers(self._layout, make))

    def sent(self, accumulating: BucketBuffers) -> BucketBuffers:
        """Return `accumulating`, but sent in the communication dtype."""
        if self._dtypes.communication in (None, self._dtypes.accumulation):
            return accumulating
        return CastBucketBuffers(self._layout, accumulating, self.single_use)
