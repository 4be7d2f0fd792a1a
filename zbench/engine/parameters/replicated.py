"""Replicated parameters: every rank holds all of them, in one flat buffer a dtype, and `p.data` is a view
of it.
"""

from collections.abc import Container, Sequence

import torch
from torch import Tensor

from zbench.engine.memory.kinds import Memory
from zbench.engine.parameters.base import Parameters, ParamInfo, checksum_of, put_back
from zbench.engine.parameters.edits import Contents, watch_collectives
from zbench.engine.parameters.handed_out import HandedOut
from zbench.engine.parameters.released import (
    data_was_read,
    data_was_written,
    forget_data,
    kinds_of,
    set_values,
)
from zbench.engine.partition import Extent
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.shard_layout import Segment, ShardLayout
from zbench.engine.transport.buffers import storage_of
from zbench.engine.transport.works import All

_UPDATED = Tag("the updated weights")


class ReplicatedParameters(Parameters):
    """Whole parameters on every rank; after the update each rank's parts are gathered in place, block by
    block.
    """

    def __init__(
        self,
        param_infos: Sequence[ParamInfo],
        shard: ShardLayout,
        dtypes: Sequence[torch.dtype],
        memory: Memory,
        collectives: Collectives,
        *,
        watched: bool = True,
    ) -> None:
        layout = shard.layout
        dtype_groups = [layout.dtype_group_extent(k) for k in range(len(dtypes))]
        super().__init__(param_infos, shard, dtypes, memory, dtype_groups)
        self.collectives, self._watched = collectives, watched
        self._views: dict[int, list[Tensor]] = {}  # by storage: speculation exchanges the buffers
        self._versions: list[int] = []
        self._contents: list[Contents] = []
        self.handed_out = HandedOut()
        self._shown = 0  # the storage that the parameters show
        self._written = False
        self._blocks = shard.blocks_to_gather
        self._published = 0
        self._works: list[Work] = []

    def adopt(self) -> None:
        self.settle()
        for t, values in zip(self.param_infos, self._values(), strict=True):
            kinds = kinds_of(t.parameter)
            set_values(t.parameter, kinds.whole if self._watched else kinds.trained, values)
            data_was_read(t.parameter)
        if self.has_masters:
            for k, (whole, flat) in enumerate(zip(self.dtype_groups, self.buffers, strict=True)):
                parts = [s for s in self.shard.segments if s.dtype_group == k]
                self._contents.append(Contents([Extent(s.flat - whole.start, s.length) for s in parts], flat))
            watch_collectives(self)
        self._expect()

    def _expect(self) -> None:
        """Take what the parameters hold now for what they are to hold at the next `absorb`."""
        self._versions = [t.parameter._version for t in self.param_infos]
        for contents, flat in zip(self._contents, self.buffers, strict=False):
            contents.note(flat)
        self._written = False

    def written(self, storage: int) -> None:
        self._written |= any(storage_of(flat) == storage for flat in self.buffers)

    def absorb(self) -> None:
        """Report the parameters that user code has changed since the last step."""
        edited = set()
        for t, values, version in zip(self.param_infos, self._values(), self._versions, strict=True):
            other_memory = put_back(t, values)
            seen = data_was_written(t.parameter) or t.parameter._version != version or other_memory
            if data_was_read(t.parameter) or seen:
                edited.add(t.index)
            if (seen or self._written) and self.collectives.world_size > 1:
                self.edited[t.index] = checksum_of(values)
        if edited or self._written:
            self._report(edited | self._hidden())

    def checksum(self, info: ParamInfo) -> int | None:
        return checksum_of(self._values()[info.index])

    def absorb_hidden(self) -> None:
        if edited := self._hidden():
            self._report(edited)

    def left_edited(self) -> bool:
        return any(contents.left_differ() for contents in self._contents)

    def _hidden(self) -> set[int]:
        """Return the parameters that may have changed unseen: all of a buffer, or none."""
        changed = {k for k, contents in enumerate(self._contents) if self._written or contents.differ()}
        return {i for i, number in self.shard.layout.dtype_group_of.items() if number in changed}

    def _report(self, edited: Container[int]) -> None:
        self._expect()
        for s in self.shard.segments:
            if s.parameter in edited:
                self.on_edit(s, self.owned(s))

    def leave(self) -> None:
        for t in self.param_infos:
            t.parameter.__class__ = kinds_of(t.parameter).original
            data_was_read(t.parameter)
            forget_data(t.parameter)

    def _values(self) -> list[Tensor]:
        """Return each parameter's values in its shape."""
        storage = storage_of(self.buffers[0]) if self.buffers else 0
        if storage not in self._views:
            group_of, spans = self.shard.layout.dtype_group_of, self.shard.layout.spans
            self._views[storage] = [
                self._stored(group_of[i], span.start, span.length).view(t.parameter.shape)
                for i, (t, span) in enumerate(zip(self.param_infos, spans, strict=True))
            ]
        return self._views[storage]

    def owned(self, segment: Segment) -> Tensor:
        return self._stored(segment.dtype_group, segment.flat, segment.length)

    def publish(self, local_stop: int) -> None:
        while self._published < len(self._blocks):
            block = self._blocks[self._published]
            if self.shard.local(block).stop > local_stop:
                return
            self._arrive()
            dtype_group = next(k for k, s in enumerate(self.dtype_groups) if s.start <= block.start < s.stop)
            view = self._stored(dtype_group, block.start, block.length)
            self._works.append(self.collectives.all_gather(view, _UPDATED))
            self._published += 1

    def settle(self) -> None:
        self.publish(self.shard.length)
        All(self._works).wait()
        self._works.clear()
        self._published = 0
        self.edited.clear()
        shown = storage_of(self.buffers[0]) if self.buffers else 0
        if shown != self._shown:  # speculation has exchanged the buffers
            self.handed_out.expire_all()
            self._shown = shown
        self._expect()
