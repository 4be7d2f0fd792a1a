"""Send buffers that belong to one step, each from its bucket's first gradient to the end of its reduction."""

from collections.abc import Sequence

import torch
from torch import Tensor

from zbench.engine.gradients.bucket_buffers import PooledBucketBuffers, ZeroCopyBucketBuffers
from zbench.engine.partition import Layout


class StepBucketBuffers(PooledBucketBuffers):
    """Pooled buffers that keep nothing once they are dropped. Gradients may also be added up in them."""

    def drop(self) -> None:
        """Free every buffer, those that hold gradients included."""
        for bucket in list(self._used):
            self.discard(bucket)
        self.pool.drop()


class CastStepBucketBuffers(StepBucketBuffers):
    """Adds gradients up in one dtype and sends them in another, in buffers that `dtype_policy` lends."""

    def __init__(
        self,
        layout: Layout,
        dtypes: Sequence[torch.dtype],
        device: torch.device,
        dtype_policy: StepBucketBuffers,
    ) -> None:
        super().__init__(layout, dtypes, device)
        self._wire = dtype_policy

    def ready(self, bucket: int) -> Tensor:
        sent = self._wire.open(bucket).copy_(self.open(bucket))
        super().close(bucket)
        return sent

    def close(self, bucket: int) -> None:
        self._wire.close(bucket)

    def discard(self, bucket: int) -> None:
        if bucket in self._used:
            super().close(bucket)
        self._wire.discard(bucket)


class ZeroCopyStepBucketBuffers(ZeroCopyBucketBuffers):
    """Sends a gradient that fills its bucket from the memory that the backward graph allocated for it."""

    def __init__(self, layout: Layout, inner: StepBucketBuffers, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__(layout, inner, dtypes)
        self.pool = inner.pool
        self._step = inner

    def drop(self) -> None:
        """Free every buffer, and let go of every gradient."""
        self._zero_copied.clear()
        self._step.drop()


def step_buffers(
    layout: Layout, device: torch.device, *, sent: Sequence[torch.dtype], kept: torch.dtype, cast: bool
) -> tuple[ZeroCopyStepBucketBuffers, StepBucketBuffers]:
    """Return the buffers of a step with one backward, and those of one with several.

    sent: the communication dtype of each dtype group. kept: the dtype in which several backwards are
    accumulated; with `cast` the sums are sent in `sent`, else as they are.
    """
    pooled = StepBucketBuffers(layout, sent, device)
    sums = [kept] * len(sent)
    several = (
        CastStepBucketBuffers(layout, sums, device, pooled)
        if cast
        else StepBucketBuffers(layout, sums, device)
    )
    return ZeroCopyStepBucketBuffers(layout, pooled, sent), several
