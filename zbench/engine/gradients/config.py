"""How gradients are reduced, as data that every part of the reduction is built from."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zbench.engine.memory.buffers import MemoryLayout
from zbench.engine.protocols import Collectives
from zbench.engine.shard_layout import ShardLayout
from zbench.engine.transport.choose import Transport


@dataclass(frozen=True, slots=True)
class DtypePolicy:
    """Dtypes of gradients.

    parameters: the dtype of each dtype group. accumulation: the dtype in which several backwards are summed.
    communication: the dtype in which gradients are sent; None sends them as they are.
    """

    parameters: Sequence[torch.dtype]
    accumulation: torch.dtype
    communication: torch.dtype | None

    @property
    def communication_dtypes(self) -> list[torch.dtype]:
        """The dtype in which each dtype group is sent."""
        return [self.communication or dtype for dtype in self.parameters]

    @property
    def accumulating_rounds(self) -> bool:
        """Whether a single gradient changes when it is kept in the accumulation dtype."""
        return any(torch.promote_types(self.accumulation, d) != self.accumulation for d in self.parameters)


@dataclass(frozen=True, slots=True)
class ReductionConfig:
    """How gradients are reduced: by `collectives`, at most `in_flight` elements at a time, into this rank's
    `shard`. `transport` is what `collectives` wraps.
    """

    shard: ShardLayout
    memory_layout: MemoryLayout
    device: torch.device
    collectives: Collectives
    transport: Transport
    in_flight: int
    dtype_policy: DtypePolicy
