"""Sharded parameters: each rank stores its part; whole values exist only while they are used.

A parameter group (usually the parameters of one module) is unsharded at once: this rank's part is copied into
a new buffer, which is all-gathered in place, and `p.data` of the group's parameters become views of it. When
the group is resharded they become placeholders of the same shape. No memory is freed while a tensor refers to
it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.parameters.replicated import Parameters, ParamInfo
from zbench.engine.partition import Extent
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.shard_layout import Segment, ShardLayout
from zbench.engine.transport.works import All


@dataclass(eq=False, slots=True)
class ShardedGroup:
    """One parameter group, and its state.

    in_use: it must stay unsharded. outstanding: how many saved tensors backward has not asked for yet.
    resident: small parameters, unsharded after every step and kept so.
    """

    store: "ShardedParameters"
    dtype_group: int
    extent: Extent
    blocks: tuple[Extent, ...]
    members: list[tuple[ParamInfo, int]] = field(default_factory=list)
    resident: bool = False
    tag: Tag = field(default_factory=lambda: Tag("weights"))
    full: Tensor | None = None
    unsharding: Work | None = None
    in_use: bool = False
    outstanding: int = 0

    @property
    def numel(self) -> int:
        return self.extent.length


class ShardedParameters(Parameters):
    """This rank's parts of all parameters in `memory`, and the operations on their groups."""

    def __init__(
        self,
        shard: ShardLayout,
        dtypes: Sequence[torch.dtype],
        device: torch.device,
        memory: Memory,
        collectives: Collectives,
        *,
        resident: frozenset[int],
    ) -> None:
        layout = shard.layout
        dtype_groups = [shard.local(layout.dtype_group_extent(k)) for k in range(len(dtypes))]
        super().__init__(shard, dtypes, memory, dtype_groups)
        self.device, self.collectives = device, collectives
        self._by_storage: dict[int, ShardedGroup] = {}
        self._leaving: list[Copy] = []
        self.groups = [
            ShardedGroup(
                self,
                group.dtype_group,
                extent,
                tuple(b for b in layout.blocks if extent.start <= b.start < extent.stop),
                resident=k in resident,
            )
            for k, (group, extent) in enumerate(zip(layout.groups, layout.group_extents, strict=True))
        ]

    def adopt(self, param_infos: Sequence[ParamInfo]) -> None:
        spans = self.shard.layout.spans
        for group, planned in zip(self.groups, self.shard.layout.groups, strict=True):
            starts = [spans[i].start - group.extent.start for i in planned.parameters]
            group.members = [(param_infos[i], at) for i, at in zip(planned.parameters, starts, strict=True)]
            group.tag = Tag("the weights " + ", ".join(p.name for p, _ in group.members))
            self.reshard(group)
        self.settle()

    def owned(self, segment: Segment) -> Tensor:
        return self._stored(segment.dtype_group, segment.local, segment.length)

    def settle(self) -> None:
        """Reshard what was gathered before the optimizer step; unshard resident groups again."""
        self._arrive()
        for group in self.groups:
            if group.members:
                self.reshard(group)
                if group.resident:
                    self.unshard(group)
        for group in self.groups:
            if group.resident and group.members:
                self.wait_for_unshard(group)

    def unshard(self, group: ShardedGroup) -> None:
        """Start to all-gather a group."""
        group.full = torch.empty(group.numel, dtype=self.dtypes[group.dtype_group], device=self.device)
        self._by_storage[group.full.untyped_storage()._cdata] = group
        self._leaving = [copy for copy in self._leaving if not copy.is_completed()]
        works = []
        for block in group.blocks:
            part, local = self.shard.part(block), self.shard.local(block)
            at = part.start - group.extent.start
            mine = group.full[at : at + part.length]
            copy = self.memory.copy_out(self._stored(group.dtype_group, local.start, local.length), mine)
            self._leaving.append(copy)
            copy.wait()
            begin = block.start - group.extent.start
            works.append(self.collectives.all_gather(group.full[begin : begin + block.length], group.tag))
        group.unsharding = All(works)

    def release(self) -> None:
        for copy in self._leaving:
            copy.release()
        self._leaving.clear()

    def wait_for_unshard(self, group: ShardedGroup) -> None:
        """Return when a gather that was started is done; the parameters are whole then."""
        if group.unsharding is None:
            return
        group.unsharding.wait()
        group.unsharding = None
        assert group.full is not None
        for param_info, at in group.members:
            p = param_info.parameter
            p.data = group.full[at : at + p.numel()].view(p.shape)

    def reshard(self, group: ShardedGroup) -> None:
        """Free a group's whole values."""
        if group.unsharding is not None:
            group.unsharding.wait()
            group.unsharding = None
        if group.full is not None:
            del self._by_storage[group.full.untyped_storage()._cdata]
        group.full, group.in_use = None, False
        dtype = self.dtypes[group.dtype_group]
        nowhere = torch.full((), torch.nan if dtype.is_floating_point else 0, dtype=dtype, device=self.device)
        for param_info, _ in group.members:
            param_info.parameter.data = nowhere.expand(param_info.parameter.shape)

    def group_viewed_by(self, tensor: Tensor) -> ShardedGroup | None:
        """Return the group of whose whole values `tensor` is a view, or None."""
        return self._by_storage.get(tensor.untyped_storage()._cdata)

    def bytes_by_category(self) -> dict[str, int]:
        here = sum(group.full.nbytes for group in self.groups if group.full is not None)
        return dict(Counter(super().bytes_by_category()) + Counter(parameters=here))
