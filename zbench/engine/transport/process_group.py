"""The collectives of NCCL and of other backends that need no composition."""

import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Work
from zbench.engine.transport.agreement import Call
from zbench.engine.transport.base import GroupCollectives, launched
from zbench.engine.transport.sums import sum_in_rank_order
from zbench.engine.transport.works import Then


class ProcessGroupCollectives(GroupCollectives):
    """Sums in rank order: each rank sends every part to its owner, which adds them. A backend's own
    reduce-scatter moves as many bytes, and adds in an order of its own that depends on sizes and links.
    """

    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work:
        buffer = self.scratch.take(send.numel(), send.dtype)
        received = buffer[: send.numel()]
        work = dist.all_to_all_single(received, send, group=self.group, async_op=True)

        def finish() -> None:
            sum_in_rank_order(out, received.chunk(self.world_size))
            self.scratch.give(buffer)

        return Then(launched(work), finish)

    def _all_gather(self, flat: Tensor, call: Call) -> Work:
        part = flat.chunk(self.world_size)[self.rank]
        return launched(dist.all_gather_into_tensor(flat, part, group=self.group, async_op=True))
