"""Sharded parameters: each rank stores its part; whole values exist only while they are used.

A parameter group (usually the parameters of one module) is unsharded at once. This rank's part is copied into
a new buffer, the buffer is all-gathered in place, and `p.data` of the group's parameters become views of it.
When the group is resharded its parameters become `Released`. No memory is freed while a tensor refers to it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch.autograd.graph import increment_version

from zbench.engine.memory.kinds import Copy, Filled, Memory, used_on_current_stream
from zbench.engine.parameters.base import Parameters, ParamInfo, checksum_of, put_back
from zbench.engine.parameters.edits import watch_collectives
from zbench.engine.parameters.grouping import GroupPlan
from zbench.engine.parameters.handed_out import HandedOut, written_error
from zbench.engine.parameters.released import (
    Kinds,
    data_is_read,
    data_was_read,
    data_was_written,
    kinds_of,
    release,
    set_refusal,
    set_values,
)
from zbench.engine.partition import Extent
from zbench.engine.protocols import Collectives, Tag, Work
from zbench.engine.shard_layout import Segment, ShardLayout
from zbench.engine.transport.buffers import storage_of
from zbench.engine.transport.works import All

P = ParamSpec("P")
WEIGHTS = "the weights "
"""What every gather of a group is for, before the names."""

_REFUSAL = (
    "the values of {name!r} are not on this rank now: zero_stage 3 keeps them sharded while no module uses"
    " them. Read them inside `with engine.gathered(module_or_parameters):`, and change them with write=True"
)
_LEFT = (
    "the values of {name!r} are gone: its stage-3 engine was closed; take engine.full_parameters() before"
    " close(), and give it values (p.data = values.clone())"
)


@dataclass(eq=False, slots=True)
class Member:
    """One parameter of a group: where it begins in it, what it holds while it is released, and now."""

    info: ParamInfo
    start: int
    shape: torch.Size
    nowhere: Tensor
    kinds: Kinds
    values: Tensor
    version: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel()


class GroupState(Enum):
    """The life of a parameter group; docs/engine-safety.md draws it. Its parameters are `Released` in the
    first two states, and views of the group's memory in the others.
    """

    SHARDED = auto()
    """Each rank has its part, and nothing else."""
    GATHERING = auto()
    """An all-gather is under way."""
    WHOLE = auto()
    """Gathered, and not in use: ahead of its use, or kept for the next one."""
    IN_USE = auto()
    """A module, a context or backward uses it."""
    EXPOSED = auto()
    """Read where nothing replaces what autograd saves, so autograd may hold the parameters themselves: whole
    until the step ends.
    """


_NEXT = {
    GroupState.SHARDED: {GroupState.GATHERING},
    GroupState.GATHERING: {GroupState.WHOLE, GroupState.SHARDED},
    GroupState.WHOLE: {GroupState.IN_USE, GroupState.EXPOSED, GroupState.SHARDED},
    GroupState.IN_USE: {GroupState.WHOLE, GroupState.EXPOSED, GroupState.SHARDED},
    GroupState.EXPOSED: {GroupState.SHARDED},
}


@dataclass(eq=False, slots=True)
class ShardedGroup:
    """One parameter group.

    frames: how many running modules and open contexts need it. outstanding: how many saved tensors backward
    has not asked for yet. resident: small parameters, unsharded after every step and kept so. full: the
    memory of the whole values. filled: they have been gathered.
    """

    store: "ShardedParameters"
    dtype_group: int
    extent: Extent
    blocks: tuple[Extent, ...]
    members: list[Member] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    resident: bool = False
    tag: Tag = field(default_factory=lambda: Tag("weights"))
    full: Tensor | None = None
    unsharding: Work | None = None
    filled: Filled | None = None
    state: GroupState = GroupState.SHARDED
    frames: int = 0
    outstanding: int = 0

    @property
    def numel(self) -> int:
        return self.extent.length

    @property
    def is_whole(self) -> bool:
        """Whether the model sees its values."""
        return self.state not in (GroupState.SHARDED, GroupState.GATHERING)

    def become(self, state: GroupState) -> None:
        """Take the next state."""
        assert state in _NEXT[self.state], f"{self.state} -> {state}: {self.tag.topic}"
        self.state = state


def _apart(act: Callable[P, None]) -> Callable[P, None]:
    """Act outside of inference mode and torch.func: tensors made in these serve nothing else."""

    @wraps(act)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        if not torch.is_inference_mode_enabled() and maybe_current_level() is None:
            act(*args, **kwargs)
            return
        with torch.inference_mode(False), torch._C._DisableFuncTorch():
            act(*args, **kwargs)

    return call


class ShardedParameters(Parameters):
    """Parts of all parameters in `memory`, and the operations on groups.

    They are in the parameters' dtypes, or are the float32 master weights (`stored`): gathers round them.
    """

    def __init__(
        self,
        param_infos: Sequence[ParamInfo],
        shard: ShardLayout,
        plan: GroupPlan,
        device: torch.device,
        memory: Memory,
        collectives: Collectives,
        stored: torch.dtype | None = None,
    ) -> None:
        layout, dtypes = shard.layout, plan.dtypes
        dtype_groups = [shard.local(layout.dtype_group_extent(k)) for k in range(len(dtypes))]
        super().__init__(param_infos, shard, dtypes, memory, dtype_groups, stored)
        self.device, self.collectives = device, collectives
        self.by_storage: dict[int, ShardedGroup] = {}
        self.of_this_step: set[int] = set()  # storages that were gathered since the last step
        self._leaving: list[Copy] = []
        self.handed_out = HandedOut()
        self._written: set[int] = set()  # parameters that a collective may have written
        self.groups = [
            ShardedGroup(
                self,
                planned.dtype_group,
                extent,
                tuple(b for b in layout.blocks if extent.start <= b.start < extent.stop),
                resident=k in plan.resident,
            )
            for k, (planned, extent) in enumerate(zip(layout.groups, layout.group_extents, strict=True))
        ]
        for group, planned in zip(self.groups, layout.groups, strict=True):
            dtype = dtypes[group.dtype_group]
            missing = torch.nan if dtype.is_floating_point else 0
            nowhere = torch.full((), missing, dtype=dtype, device=device)
            for i in planned.parameters:
                t = param_infos[i]
                at = layout.spans[i].start - group.extent.start
                shape = t.parameter.shape
                kinds = kinds_of(t.parameter)
                elsewhere = nowhere.expand(shape)
                group.members.append(Member(t, at, shape, elsewhere, kinds, values=elsewhere))
            group.tag = Tag(WEIGHTS + ", ".join(m.info.name for m in group.members))
            group.members.sort(key=lambda m: (m.start, m.stop))
            group.starts = [m.start for m in group.members]

    def adopt(self) -> None:
        for m in (m for group in self.groups for m in group.members):
            set_refusal(m.info.parameter, _REFUSAL.format(name=m.info.name))
            release(m.info.parameter, m.kinds.released, m.nowhere)
        watch_collectives(self)
        self.settle()

    def owned(self, segment: Segment) -> Tensor:
        return self._stored(segment.dtype_group, segment.local, segment.length)

    def settle(self) -> None:
        """Reshard what was gathered before the optimizer step; unshard resident groups and groups in use
        again.
        """
        self._arrive()
        self.handed_out.expire_all()
        self.edited.clear()
        again = [group for group in self.groups if group.resident or group.frames]
        for group in self.groups:
            self.reshard(group)
        self.of_this_step.clear()
        for group in again:
            self.unshard(group)
        for group in again:
            self.wait_for_unshard(group)

    @_apart
    def unshard(self, group: ShardedGroup) -> None:
        """Start to all-gather a group."""
        full = torch.empty(group.numel, dtype=self.dtypes[group.dtype_group], device=self.device)
        self._leaving = [copy for copy in self._leaving if not copy.is_completed()]
        works = list[Work]()
        local = self.shard.local(group.extent)
        wholes = full.split([block.length for block in group.blocks])  # type: ignore[no-untyped-call]
        parts = self._stored(group.dtype_group, local.start, local.length).split(  # type: ignore[no-untyped-call]
            [self.shard.local(block).length for block in group.blocks]
        )
        for block, whole, part in zip(group.blocks, wholes, parts, strict=True):
            at = self.shard.part(block).start - block.start
            copy = self.memory.copy_out(part, whole.narrow(0, at, part.numel()))
            self._leaving.append(copy)
            with copy.behind():
                works += copy, self.collectives.all_gather(whole, group.tag)
        group.full = full  # only once nothing can fail any more
        group.unsharding = All(works)
        group.become(GroupState.GATHERING)
        self.by_storage[storage_of(full)] = group
        self.of_this_step.add(storage_of(full))

    def release(self) -> None:
        for copy in self._leaving:
            copy.release()
        self._leaving.clear()

    def wait_for_unshard(self, group: ShardedGroup) -> None:
        """Return when a gather that was started is done; the parameters are whole then, on this stream of the
        device, too.
        """
        if group.state is GroupState.GATHERING:
            self._show(group)
        else:
            assert group.filled is not None
            group.filled.read_here()

    @_apart
    def _show(self, group: ShardedGroup) -> None:
        full = self._gathered(group)
        group.filled = Filled(full)
        for m in group.members:
            m.values = full[m.start : m.stop].view(m.shape)
            set_values(m.info.parameter, m.kinds.whole, m.values)
            m.version = m.info.parameter._version
        group.become(GroupState.WHOLE)

    def _gathered(self, group: ShardedGroup) -> Tensor:
        """Return the memory of the group's whole values once its gather is done."""
        assert group.full is not None
        if group.unsharding is not None:
            group.unsharding.wait()
            group.unsharding = None
        return group.full

    def reshard(self, group: ShardedGroup) -> None:
        """Free a group's whole values; a graph that saved exposed parameters cannot be used any more."""
        if group.state is not GroupState.SHARDED:
            self._free(group)

    @_apart
    def _free(self, group: ShardedGroup) -> None:
        full = self._gathered(group)
        used_on_current_stream(full)
        del self.by_storage[storage_of(full)]
        if group.state is GroupState.EXPOSED:
            increment_version([m.info.parameter for m in group.members])
        group.full = group.filled = None
        group.become(GroupState.SHARDED)
        for m in group.members:
            m.values = m.nowhere
            release(m.info.parameter, m.kinds.released, m.nowhere)

    def leave(self) -> None:
        for m in (m for group in self.groups for m in group.members):
            release(m.info.parameter, m.kinds.left, m.nowhere)
            set_refusal(m.info.parameter, _LEFT.format(name=m.info.name))

    def written(self, storage: int) -> None:
        for m in self.by_storage[storage].members if storage in self.by_storage else ():
            data_is_read(m.info.parameter)
            self._written.add(m.info.index)

    @_apart
    def absorb(self, group: ShardedGroup) -> None:
        """Copy in-place changes that user code made to the group's whole values into this rank's parts."""
        assert group.full is not None
        for m in group.members:
            other_memory = put_back(m.info, m.values)
            seen = data_was_written(m.info.parameter) or other_memory or m.info.index in self._written
            if (seen or m.info.parameter._version != m.version) and self.collectives.world_size > 1:
                self.edited[m.info.index] = checksum_of(m.values)
            self._written.discard(m.info.index)
            if data_was_read(m.info.parameter) or m.info.parameter._version != m.version or other_memory:
                self._take_edit(group, m)

    def check_handed_out(self) -> None:
        """Raise UsageError for a copy in a state of the model that was changed and not loaded."""
        if not self.handed_out:
            return
        for m in (m for group in self.groups for m in group.members):
            for copy in self.handed_out.written(m.info.parameter):
                values = copy.detach().reshape(-1)
                for s in self.shard.segments:
                    if s.parameter == m.info.index:
                        first = s.flat - self.shard.layout.spans[s.parameter].start
                        stored = self.owned(s).to(values)
                        if not torch.equal(values[first : first + s.length], stored):
                            raise written_error(copy)

    def absorb_hidden(self) -> None:
        for group in self.groups:
            if group.resident and group.is_whole and self._differs(group):
                for m in group.members:
                    self._take_edit(group, m)

    def _differs(self, group: ShardedGroup) -> bool:
        """Return whether the whole values have others than this rank's parts; waits for the device."""
        assert group.full is not None
        for block in group.blocks:
            local = self.shard.local(block)
            at = self.shard.part(block).start - group.extent.start
            part = self._stored(group.dtype_group, local.start, local.length)
            whole = group.full[at:]
            if not torch.equal(whole[: local.length], part.to(whole)):
                return True
        return False

    @_apart
    def _take_edit(self, group: ShardedGroup, m: Member) -> None:
        version = m.info.parameter._version
        parts = list(self._parts_of(group, m))
        if version != m.version or any(not torch.equal(v, self.owned(s).to(v)) for s, v in parts):
            m.version = version
            self.handed_out.expire(m.info.parameter)
            self.release()
            for s, values in parts:
                self.on_edit(s, values)
                if self.owned(s).dtype == values.dtype:  # else it is a master, which has followed
                    self.owned(s).copy_(values)

    def _parts_of(self, group: ShardedGroup, m: Member) -> Iterator[tuple[Segment, Tensor]]:
        assert group.full is not None
        for s in self.shard.segments:
            if s.parameter == m.info.index:
                at = s.flat - group.extent.start
                yield s, group.full[at : at + s.length]

    def bytes_by_category(self) -> dict[str, int]:
        here = sum(group.full.nbytes for group in self.groups if group.full is not None)
        return dict(Counter(super().bytes_by_category()) + Counter(parameters=here))
