"""Collectives of a world that is not there: they allocate what the real ones allocate, and send nothing."""

import torch
from torch import Tensor

from zbench.engine.protocols import Work
from zbench.engine.transport.agreement import Call
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.buffers import overlap
from zbench.engine.transport.works import Done, Then


class SimulatedCrossMemory(GroupCollectives):
    """Ranks of one host read one another's memory: a collective's own pieces are freed within it."""

    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work:
        if self.shards == self.world_size or not overlap(send, out):
            return Done()
        sums = torch.empty_like(out)

        def finish() -> None:
            out.copy_(sums)

        return Then(Done(), finish)

    def _all_gather(self, flat: Tensor, call: Call) -> Work:
        return Done()
