"""Where sums land when reductions are compiled: memory from the boundary backward to the update only."""

import torch

from zbench.engine.gradients.reduced_buffers import Landing
from zbench.engine.memory.buffers import Placement
from zbench.engine.partition import Shard


class StepTargets(Landing):
    """A landing that is registered empty: between steps `sums` and all its views have shape but no memory.

    The boundary backward binds one zeroed flat partition; buckets are reduced straight into it, and the
    optimizer reads it as it is. `drop` frees the memory under every view at once, so no reference can keep it
    alive.
    """

    def __init__(self, shard: Shard, placement: Placement, device: torch.device) -> None:
        super().__init__(shard, placement, device, torch.float32)
        self.drop()

    def begin(self, *, first: bool, last: bool) -> None:
        for flat in self.sums.flats:
            if flat.bind():
                flat.buffers[0].zero_()
        super().begin(first=first, last=last)

    def drop(self) -> None:
        self._free()
