"""Parameters that are not trained: whole in the model, or (stage 3) sharded and gathered like the others."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.replicated import ParamInfo, write_segments
from zbench.engine.parameters.sharded import ShardedParameters


class Frozen(Protocol):
    """Read and written whole, by name; the same calls on every rank."""

    members: Sequence[ParamInfo]

    def read(self, member: ParamInfo) -> Tensor:
        """Return a copy of the whole value, in the parameter's dtype."""
        ...

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Take over the values that are there."""
        ...

    def leave(self) -> None:
        """The engine is closed: the model's parameters are nobody's now."""
        ...

    def bytes_by_category(self) -> dict[str, int]: ...


class FrozenInPlace:
    """Whole on every rank."""

    def __init__(self, members: Sequence[ParamInfo]) -> None:
        self.members = members

    def read(self, member: ParamInfo) -> Tensor:
        return member.parameter.detach().clone()

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        for t in self.members:
            if t.name in values:
                t.parameter.copy_(values[t.name])

    def leave(self) -> None:
        return

    def bytes_by_category(self) -> dict[str, int]:
        return {"parameters": sum(t.parameter.nbytes for t in self.members)}


class FrozenShards:
    """In a sharded store of their own, without gradients, masters or moments."""

    def __init__(self, members: Sequence[ParamInfo], store: ShardedParameters, gatherer: Gatherer) -> None:
        self.members, self.store, self.gatherer = members, store, gatherer

    def read(self, member: ParamInfo) -> Tensor:
        with self.gatherer.reading(member.parameter):
            return member.parameter.detach().clone()

    def load(self, values: Mapping[str, Tensor]) -> None:
        self.store.release()
        write_segments(self.store.shard, self.members, lambda t: values.get(t.name), self.store.owned)
        self.store.settle()

    def leave(self) -> None:
        self.store.leave()

    def bytes_by_category(self) -> dict[str, int]:
        return self.store.bytes_by_category()
