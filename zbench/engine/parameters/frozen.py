"""Parameters that are not trained: whole in the model, or (stage 3) sharded and gathered like the others."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zbench.engine.parameters.base import ParamInfo, write_segments
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.sharded import ShardedParameters


class Frozen:
    """Parameters that are read and written whole, by the same calls on every rank. These are in place."""

    def __init__(self, members: Sequence[ParamInfo]) -> None:
        self.members = members

    def fill(self, value: Callable[[ParamInfo], Tensor]) -> None:
        """Store `value(member)` of every member, before the model uses what is stored here."""

    def read(self, member: ParamInfo) -> Tensor:
        """Return a copy of the whole value, in the parameter's dtype."""
        return member.parameter.detach().clone()

    @torch.no_grad()
    def load(self, value: Callable[[ParamInfo], Tensor]) -> None:
        """Take over `value(member)` for every member."""
        for t in self.members:
            t.parameter.copy_(value(t))

    def leave(self) -> None:
        """The engine is closed: the model's parameters are nobody's now."""

    def bytes_by_category(self) -> dict[str, int]:
        """Return what is held now."""
        return {"parameters": sum(t.parameter.nbytes for t in self.members)}


class FrozenShards(Frozen):
    """In a sharded store of their own, without gradients, masters or moments."""

    def __init__(self, store: ShardedParameters, gatherer: Gatherer) -> None:
        super().__init__(store.param_infos)
        self.store, self.gatherer = store, gatherer

    def fill(self, value: Callable[[ParamInfo], Tensor]) -> None:
        write_segments(self.store.shard, self.members, value, self.store.owned)

    def read(self, member: ParamInfo) -> Tensor:
        with self.gatherer.holding([member.parameter]):
            return super().read(member)

    def load(self, value: Callable[[ParamInfo], Tensor]) -> None:
        self.store.release()  # no copy reads what is written; what it brings is gathered anew below
        self.fill(value)
        self.store.settle()

    def leave(self) -> None:
        self.store.leave()

    def bytes_by_category(self) -> dict[str, int]:
        return self.store.bytes_by_category()
