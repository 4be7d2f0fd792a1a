"""Replicated parameters: every rank holds all of them, in one flat buffer a dtype, and `p.data` is a view
of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from zbench.engine.memory.kinds import Copy, Memory, transfer
from zbench.engine.parameters.released import data_was_read, kinds_of, set_values
from zbench.engine.partition import Extent
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.shard_layout import Segment, ShardLayout
from zbench.engine.transport.buffers import place
from zbench.engine.transport.works import All
from zbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """One parameter, trained or frozen.

    index: its place in registration order among the trained ones (or among the frozen ones). group: its
    optimizer group; -1 for a frozen one.
    """

    index: int
    name: str
    parameter: torch.nn.Parameter
    group: int


def write_segments(
    shard: ShardLayout,
    members: Sequence[ParamInfo],
    value: Callable[[ParamInfo], Tensor | None],
    place: Callable[[Segment], Tensor],
) -> None:
    """Write this rank's part of `value(member)`, a whole tensor, to `place(segment)`; None leaves it alone.

    `value` is called once a member, in the same order on every rank: it may be collective.
    """
    segments = {member.index: [] for member in members}  # type: dict[int, list[Segment]]
    for s in shard.segments:
        segments[s.parameter].append(s)
    for member in members:
        whole = value(member)
        if whole is None:
            continue
        for s in segments[member.index]:
            at = s.flat - shard.layout.spans[s.parameter].start
            part = whole.detach().reshape(-1)[at : at + s.length]
            place(s)[: part.numel()].copy_(part)


class Parameters(ABC):
    """The model's parameters as the optimizer sees them: segments of this rank to write, and a way to publish
    them.

    buffers: their memory on this rank, one per dtype group, in `memory`. on_edit: called with every segment
    of this rank, and its values, that somebody else than the engine has changed.
    """

    def __init__(
        self,
        shard: ShardLayout,
        dtypes: Sequence[torch.dtype],
        memory: Memory,
        dtype_groups: Sequence[Extent],
    ) -> None:
        self.shard, self.dtypes, self.memory, self.dtype_groups = shard, dtypes, memory, dtype_groups
        self.buffers = [memory.zeros(s.length, d) for s, d in zip(dtype_groups, dtypes, strict=True)]
        self._arriving: list[Copy] = []
        self.on_edit: Callable[[Segment, Tensor], None] = lambda segment, values: None
        self.param_infos: Sequence[ParamInfo] = ()

    @abstractmethod
    def owned(self, segment: Segment) -> Tensor:
        """Return the stored values [segment.length] of what this rank owns, in the parameter's dtype."""

    @abstractmethod
    def adopt(self, param_infos: Sequence[ParamInfo]) -> None:
        """Make the model's parameters views of what is stored here, and free their old values."""

    @abstractmethod
    def settle(self) -> None:
        """Publish the rest; return when the next forward may begin."""

    def receive(self, segment: Segment, values: Tensor, at: Memory) -> Copy:
        """Start copying new values of what this rank owns from another memory."""
        copy = transfer(values, at, self.owned(segment), self.memory)
        self._arriving.append(copy)
        return copy

    def mark_updated(self, which: Sequence[bool]) -> None:
        """Have torch know that these parameters have new values: a graph that saved old ones is refused."""
        increment_version([t.parameter for t in self.param_infos if which[t.index]])

    @abstractmethod
    def leave(self) -> None:
        """Release the model's parameters, because the engine is closed."""

    def publish(self, local_stop: int) -> None:
        """Start to send updated values to the other ranks: segments below `local_stop` (local order) are
        final.
        """

    def release(self) -> None:
        """Return when no copy reads the stored values, so that they may be written."""

    def _arrive(self) -> None:
        """Return when what was received may be read."""
        for copy in self._arriving:
            copy.wait()
        self._arriving.clear()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what is held now."""
        held = sum(self.memory.occupied(flat.nbytes) for flat in self.buffers)
        return {f"{self.memory.prefix}parameters": held}

    def _stored(self, dtype_group: int, start: int, length: int) -> Tensor:
        at = start - self.dtype_groups[dtype_group].start
        return self.buffers[dtype_group].narrow(0, at, length)


_UPDATED = Tag("the weights after a step")


class ReplicatedParameters(Parameters):
    """Whole parameters on every rank; after the update each rank's parts are gathered in place, block by
    block.
    """

    def __init__(
        self,
        shard: ShardLayout,
        dtypes: Sequence[torch.dtype],
        memory: Memory,
        collectives: Collectives,
        *,
        watched: bool = True,
    ) -> None:
        layout = shard.layout
        super().__init__(shard, dtypes, memory, [layout.dtype_group_extent(k) for k in range(len(dtypes))])
        self.collectives, self._watched = collectives, watched
        self._versions: list[int] = []
        self._blocks = shard.blocks_to_gather
        self._published = 0
        self._works: list[Work] = []

    def adopt(self, param_infos: Sequence[ParamInfo]) -> None:
        for t in param_infos:
            kinds = kinds_of(t.parameter)
            set_values(t.parameter, kinds.whole if self._watched else kinds.trained, self._view(t))
            data_was_read(t.parameter)
        self.param_infos = param_infos
        self._expect_versions()

    def _expect_versions(self) -> None:
        self._versions = [t.parameter._version for t in self.param_infos]

    def absorb(self) -> None:
        """Report the parameters that user code has changed since the last step."""
        edited = set()
        for t, version in zip(self.param_infos, self._versions, strict=True):
            if data_was_read(t.parameter) or t.parameter._version != version or self._replaced(t):
                edited.add(t.index)
        if edited:
            self._expect_versions()
            for s in self.shard.segments:
                if s.parameter in edited:
                    self.on_edit(s, self.owned(s))

    def _replaced(self, t: ParamInfo) -> bool:
        """Whether `p.data = values` gave an unwatched parameter other memory; its values are taken over."""
        if self._watched or place(t.parameter) == place(self._view(t)):
            return False
        given, mine = t.parameter.data, self._view(t)
        if given.shape != mine.shape:
            raise UsageError(
                f"p.data = values: expected shape {list(mine.shape)} for {t.name!r}, got {list(given.shape)}"
            )
        mine.copy_(given)
        t.parameter.data = mine
        return True

    def leave(self) -> None:
        for t in self.param_infos:
            t.parameter.__class__ = kinds_of(t.parameter).original
            data_was_read(t.parameter)

    def _view(self, t: ParamInfo) -> Tensor:
        span = self.shard.layout.spans[t.index]
        stored = self._stored(self.shard.layout.dtype_group_of[t.index], span.start, span.numel)
        return stored.view(t.parameter.shape)

    def owned(self, segment: Segment) -> Tensor:
        return self._stored(segment.dtype_group, segment.flat, segment.length)

    def publish(self, local_stop: int) -> None:
        while self._published < len(self._blocks):
            block = self._blocks[self._published]
            if self.shard.local(block).stop > local_stop:
                return
            self._arrive()
            self._works.append(self.collectives.all_gather(self._block_view(block), _UPDATED))
            self._published += 1

    def _block_view(self, block: Extent) -> Tensor:
        dtype_group = next(k for k, s in enumerate(self.dtype_groups) if s.start <= block.start < s.stop)
        return self._stored(dtype_group, block.start, block.length)

    def settle(self) -> None:
        self.publish(self.shard.length)
        All(self._works).wait()
        self._works.clear()
        self._published = 0
        self._expect_versions()
