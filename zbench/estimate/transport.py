"""Collectives of a world that is not there: they allocate what the real ones allocate, and send nothing."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Memory, Work
from zbench.engine.transport.agreement import Call
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.choose import Transport
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.works import Done

ChooseTransport = Callable[[dist.ProcessGroup | None, Memory, Memory], Transport]


class SimulatedCrossMemory(GroupCollectives):
    """Ranks of one host read one another's memory: a collective's own pieces are freed within it."""

    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work:
        return Done()

    def _all_gather(self, flat: Tensor, call: Call) -> Work:
        return Done()


class SimulatedGloo(GlooCollectives):
    """Gloo between hosts: its receive buffers are real code's, only the exchange is left out."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        GroupCollectives.__init__(self, group, device)
        self._exchanges = self._gathers = None  # type: ignore[assignment]

    def close(self) -> None:
        GroupCollectives.close(self)

    def _exchange(self, group: object, send: Sequence[Tensor], receive: Sequence[Tensor], call: Call) -> Work:
        return Done()
