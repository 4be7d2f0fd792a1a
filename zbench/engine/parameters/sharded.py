"""Sharded parameters (stage 3): each rank keeps its parts; a unit's whole values exist only while they are
used.

A *unit* is what is gathered at once: one region of the layout, the parameters of one module. Its parts are
copied into a fresh buffer, gathered there in place, and `p.data` of its parameters become views of it; at
release they become placeholders of the same shape. Nothing is ever freed under a tensor that still refers
to it.
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
    """Parameters that are gathered together, and what of them is here now.

    `in_use`: in use, and not to be released. `outstanding`: tensors that backward will ask for. `resident`:
    small parameters that are gathered after every step and stay.
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
    """Parts of all parameters in `memory`, in the parameters' dtypes, and the operations on units."""

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
        """Let go of values from before the update; gather those that stay."""
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
        """Start to gather a unit that is not here."""
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
        """Wait for a gather that was started; the parameters are whole then."""
        if group.unsharding is None:
            return
        group.unsharding.wait()
        group.unsharding = None
        assert group.full is not None
        for param_info, at in group.members:
            p = param_info.parameter
            p.data = group.full[at : at + p.numel()].view(p.shape)

    def reshard(self, group: ShardedGroup) -> None:
        """Let go of a unit's whole values."""
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
        """Return the unit whose whole values `tensor` is a view of, if there is one."""
        return self._by_storage.get(tensor.untyped_storage()._cdata)

    def bytes_by_category(self) -> dict[str, int]:
        here = sum(group.full.nbytes for group in self.groups if group.full is not None)
        return dict(Counter(super().bytes_by_category()) + Counter(parameters=here))
