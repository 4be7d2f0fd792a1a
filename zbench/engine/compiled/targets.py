"""Where sums land when reductions are compiled: memory from the boundary backward to the update only."""

import torch

from zbench.engine.compiled.pages import prefer_huge_pages
from zbench.engine.landing import Landing
from zbench.engine.offload.flat import Placement
from zbench.engine.partition import Shard


class StepTargets(Landing):
    """A landing that is registered empty: between steps `sums` and all its views have shape but no memory.

    The boundary backward binds one zeroed flat partition; buckets are reduced straight into it, and the
    optimizer reads it as it is. `drop` frees the memory under every view at once, so no reference can keep it
    alive.
    """

    def __init__(self, shard: Shard, placement: Placement, device: torch.device) -> None:
        super().__init__(shard, placement, device, torch.float32)
        self._storages = [flat.buffers[0].untyped_storage() for flat in self.sums.flats]
        self._bytes = [storage.nbytes() for storage in self._storages]
        self._there = True
        self.drop()

    def begin(self, *, first: bool, last: bool) -> None:
        if not self._there:
            self._there = True
            for storage, size, flat in zip(self._storages, self._bytes, self.sums.flats, strict=True):
                storage.resize_(size)
                prefer_huge_pages(flat.buffers[0])
                flat.buffers[0].zero_()
        super().begin(first=first, last=last)

    def drop(self) -> None:
        """Free the partition. Nothing may be on its way into it, and its views must not be read any more."""
        for storage in self._storages:
            storage.resize_(0)
        self._there = False
        self._scratch.drop()

    def bytes_by_category(self) -> dict[str, int]:
        held = {"buckets": self._scratch.bytes}
        for storage, flat in zip(self._storages, self.sums.flats, strict=True):
            held[f"{flat.home.prefix}gradients"] = storage.nbytes()
        return held
