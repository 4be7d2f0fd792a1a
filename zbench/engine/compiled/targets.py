"""Where sums land when reductions are compiled: memory from the boundary backward to the update only."""

import torch

from zbench.engine.gradients.reduced_buffers import ReducedGradientBuffer
from zbench.engine.memory.buffers import MemoryLayout
from zbench.engine.partition import ShardLayout


class StepReducedGradientBuffer(ReducedGradientBuffer):
    """A reduced-gradient buffer without memory between steps: `sums` and its views keep their shapes only.

    The boundary backward allocates one zeroed flat partition; buckets are reduced into it and the optimizer
    reads it. `drop` frees the memory under every view at once, so no reference can keep it alive.
    """

    def __init__(self, shard: ShardLayout, memory_layout: MemoryLayout, device: torch.device) -> None:
        super().__init__(shard, memory_layout, device, torch.float32)
        self.drop()

    def begin(self, *, first: bool, last: bool) -> None:
        for flat in self.sums.flats:
            if flat.bind():
                flat.buffers[0].zero_()
        super().begin(first=first, last=last)

    def drop(self) -> None:
        self._free()
