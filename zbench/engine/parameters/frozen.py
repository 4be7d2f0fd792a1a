"""Parameters that are not trained: whole in the model, or sharded and gathered like trained ones."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.replicated import ParamInfo, write_segments
from zbench.engine.parameters.sharded import ShardedParameters


class Frozen(Protocol):
    """The values of frozen parameters by name, read and written whole; all ranks make the same calls."""

    def values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each name and whole value in the parameter's dtype; a value is valid until the next is
        yielded.
        """
        ...

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Copy the given values; parameters without one keep theirs."""
        ...

    def bytes_by_category(self) -> dict[str, int]: ...


class FrozenInPlace:
    """Frozen parameters that every rank holds whole."""

    def __init__(self, members: Sequence[ParamInfo]) -> None:
        self.members = members

    def values(self) -> Iterator[tuple[str, Tensor]]:
        return ((t.name, t.parameter.detach()) for t in self.members)

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        for t in self.members:
            if t.name in values:
                t.parameter.copy_(values[t.name])

    def bytes_by_category(self) -> dict[str, int]:
        return {"parameters": sum(t.parameter.nbytes for t in self.members)}


class FrozenShards:
    """Frozen parameters in a sharded store of their own, without gradients or optimizer state."""

    def __init__(self, members: Sequence[ParamInfo], store: ShardedParameters, gatherer: Gatherer) -> None:
        self.members, self.store, self.gatherer = members, store, gatherer

    def values(self) -> Iterator[tuple[str, Tensor]]:
        for t in self.members:
            with self.gatherer.reading(t.parameter):
                yield t.name, t.parameter.detach()

    def load(self, values: Mapping[str, Tensor]) -> None:
        self.store.release()
        write_segments(self.store.shard, self.members, lambda t: values.get(t.name), self.store.owned)
        self.store.settle()

    def bytes_by_category(self) -> dict[str, int]:
        return self.store.bytes_by_category()
