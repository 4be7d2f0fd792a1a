"""The collectives of NCCL and of other backends that need no composition."""

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Work
from zbench.engine.transport.agreement import Call
from zbench.engine.transport.base import GroupCollectives, launched
from zbench.engine.transport.subgroups import subgroup
from zbench.engine.transport.sums import sum_in_rank_order
from zbench.engine.transport.works import Then


class ProcessGroupCollectives(GroupCollectives):
    """gathers: another group of the same ranks, so that no gather waits behind a reduction in one queue.

    Sums in rank order: each rank sends every part to its owner, which adds them. A backend's own
    reduce-scatter moves as many bytes, and adds in an order of its own that depends on sizes and links.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        gathers: dist.ProcessGroup | None = None,
        shards: int | None = None,
    ) -> None:
        super().__init__(group, device, shards)
        self._gathers = gathers or group

    def close(self) -> None:
        super().close()
        if self._gathers is not self.group:
            dist.destroy_process_group(self._gathers)
            self._gathers = self.group

    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work:
        send = send.repeat(self.world_size // self.shards) if self.shards < self.world_size else send
        buffer = self.scratch.take(send.numel(), send.dtype)
        received = buffer[: send.numel()]
        work = dist.all_to_all_single(received, send, group=self.group, async_op=True)

        def finish() -> None:
            sum_in_rank_order(out, received.chunk(self.world_size))
            self.scratch.give(buffer)

        return Then(launched(work), finish)

    def _all_gather(self, flat: Tensor, call: Call) -> Work:
        part = flat.chunk(self.world_size)[self.rank]
        return launched(dist.all_gather_into_tensor(flat, part, group=self._gathers, async_op=True))


def gathering_group(group: dist.ProcessGroup, device: torch.device) -> dist.ProcessGroup | None:
    """Return another group of the same ranks; every one of them calls this. On CUDA it is a communicator of
    its own: what one communicator is given runs in order, and a weight would wait behind all reductions.
    """
    return subgroup(group, dist.get_world_size(group)) if device.type == "cuda" else None
