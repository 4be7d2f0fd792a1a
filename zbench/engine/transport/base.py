"""What all collectives over a process group share."""

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Work
from zbench.engine.transport.scratch import ScratchPool


class GroupCollectives(ABC):
    """Collectives of one process group, with receive buffers that are kept."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.scratch = ScratchPool(device)

    @abstractmethod
    def all_gather(self, flat: Tensor) -> Work: ...

    def all_gather_small(self, values: Tensor) -> Tensor:
        gathered = torch.empty((self.world_size, *values.shape), dtype=values.dtype, device=self.device)
        gathered[self.rank] = values
        if values.numel():
            self.all_gather(gathered.view(-1)).wait()
        return gathered.cpu()

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        return launched(dist.broadcast(tensor, group_src=source, group=self.group, async_op=True))

    def barrier(self) -> None:
        dist.barrier(self.group)

    def bytes_by_category(self) -> dict[str, int]:
        """Return what its receive buffers hold now."""
        return {"buckets": self.scratch.bytes}

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of what was made for this engine alone."""


def launched(work: dist.Work | None) -> Work:
    """Return `work`, which torch leaves out only for a rank outside the group."""
    assert work is not None, "the process group does not contain this rank"
    return work
