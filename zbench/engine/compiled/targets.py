"""Where sums land when reductions are compiled: memory from the boundary backward to the update only."""

import torch

from zbench.engine.home import Home
from zbench.engine.landing import ShardLanding
from zbench.engine.partition import Shard


class StepTargets(ShardLanding):
    """A landing that is registered empty: between steps `buffer` and all its views have shape but no memory.

    The boundary backward binds one zeroed flat partition; buckets are reduced straight into it, and the
    optimizer reads it as it is. `drop` frees the memory under every view at once, so no reference can keep it
    alive.
    """

    def __init__(self, shard: Shard, home: Home, device: torch.device) -> None:
        super().__init__(shard, home, device, torch.float32)
        self._storage = self.buffer.untyped_storage()
        self._bytes = self._storage.nbytes()
        self.drop()

    def begin(self, *, first: bool, last: bool) -> None:
        if self._storage.nbytes() == 0:
            self._storage.resize_(self._bytes)
            self.buffer.zero_()
        super().begin(first=first, last=last)

    def drop(self) -> None:
        """Free the partition. Nothing may be on its way into it, and its views must not be read any more."""
        self._storage.resize_(0)
        self._scratch.drop()

    def bytes_by_category(self) -> dict[str, int]:
        return {f"{self.home.prefix}gradients": self._storage.nbytes(), "buckets": self._scratch.bytes}
