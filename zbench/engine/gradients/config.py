"""The way of gradients, as data: what every kind of gradients is assembled from."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zbench.engine.memory.buffers import Placement
from zbench.engine.partition import Shard
from zbench.engine.protocols import Collectives
from zbench.engine.transport.choose import Transport


@dataclass(frozen=True, slots=True)
class Wire:
    """Dtypes of gradients: `sections` are the parameters' own, `kept` is what several backwards are added up
    in, and `sent`, if not None, what all are sent in.
    """

    sections: Sequence[torch.dtype]
    kept: torch.dtype
    sent: torch.dtype | None

    @property
    def sent_sections(self) -> list[torch.dtype]:
        """The dtype that each section is sent in."""
        return [self.sent or dtype for dtype in self.sections]


@dataclass(frozen=True, slots=True)
class Route:
    """Through `collectives` (carried out by `moved`), `in_flight` elements at a time, to where this rank's
    `shard` is kept.
    """

    shard: Shard
    placement: Placement
    device: torch.device
    collectives: Collectives
    moved: Transport
    in_flight: int
    wire: Wire
