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

from zbench.engine.memory.kinds import Home
from zbench.engine.parameters.replicated import Parameters, Trainable
from zbench.engine.partition import Extent, Segment, Shard
from zbench.engine.protocols import Collectives, Work
from zbench.engine.transport.works import All


@dataclass(eq=False, slots=True)
class Unit:
    """Parameters that are gathered together, and what of them is here now.

    `held`: in use, and not to be released. `outstanding`: tensors that backward will ask for. `resident`:
    small parameters that are gathered after every step and stay.
    """

    store: "ShardedParameters"
    section: int
    extent: Extent
    blocks: tuple[Extent, ...]
    members: list[tuple[Trainable, int]] = field(default_factory=list)
    resident: bool = False
    full: Tensor | None = None
    arriving: Work | None = None
    held: bool = False
    outstanding: int = 0

    @property
    def numel(self) -> int:
        return self.extent.length


class ShardedParameters(Parameters):
    """Parts of all parameters in `home`, in the parameters' dtypes, and the operations on units."""

    def __init__(
        self,
        shard: Shard,
        dtypes: Sequence[torch.dtype],
        device: torch.device,
        home: Home,
        collectives: Collectives,
        *,
        resident: frozenset[int],
    ) -> None:
        layout = shard.layout
        sections = [shard.local(layout.section_extent(k)) for k in range(len(dtypes))]
        super().__init__(shard, dtypes, home, sections)
        self.device, self.collectives = device, collectives
        self._by_storage: dict[int, Unit] = {}
        self.units = [
            Unit(
                self,
                region.section,
                extent,
                tuple(b for b in layout.blocks if extent.start <= b.start < extent.stop),
                resident=k in resident,
            )
            for k, (region, extent) in enumerate(zip(layout.regions, layout.region_extents, strict=True))
        ]

    def adopt(self, trainables: Sequence[Trainable]) -> None:
        for unit, region in zip(self.units, self.shard.layout.regions, strict=True):
            starts = [self.shard.layout.spans[i].start - unit.extent.start for i in region.parameters]
            unit.members = [(trainables[i], at) for i, at in zip(region.parameters, starts, strict=True)]
            self.drop(unit)
        self.settle()

    def owned(self, segment: Segment) -> Tensor:
        return self._stored(segment.section, segment.local, segment.length)

    def settle(self) -> None:
        """Let go of values from before the update; gather those that stay."""
        for unit in self.units:
            if unit.members:
                self.drop(unit)
                if unit.resident:
                    self.start(unit)
        for unit in self.units:
            if unit.resident and unit.members:
                self.finish(unit)

    def start(self, unit: Unit) -> None:
        """Start to gather a unit that is not here."""
        unit.full = torch.empty(unit.numel, dtype=self.dtypes[unit.section], device=self.device)
        self._by_storage[unit.full.untyped_storage()._cdata] = unit
        works = []
        for block in unit.blocks:
            piece, local = self.shard.piece(block), self.shard.local(block)
            at = piece.start - unit.extent.start
            mine = unit.full[at : at + piece.length]
            mine.copy_(self._stored(unit.section, local.start, local.length), non_blocking=True)
            begin = block.start - unit.extent.start
            works.append(self.collectives.all_gather(unit.full[begin : begin + block.length]))
        unit.arriving = All(works)

    def finish(self, unit: Unit) -> None:
        """Wait for a gather that was started; the parameters are whole then."""
        if unit.arriving is None:
            return
        unit.arriving.wait()
        unit.arriving = None
        assert unit.full is not None
        for trainable, at in unit.members:
            p = trainable.parameter
            p.data = unit.full[at : at + p.numel()].view(p.shape)

    def drop(self, unit: Unit) -> None:
        """Let go of a unit's whole values."""
        if unit.arriving is not None:
            unit.arriving.wait()
            unit.arriving = None
        if unit.full is not None:
            del self._by_storage[unit.full.untyped_storage()._cdata]
        unit.full, unit.held = None, False
        dtype = self.dtypes[unit.section]
        nowhere = torch.full((), torch.nan if dtype.is_floating_point else 0, dtype=dtype, device=self.device)
        for trainable, _ in unit.members:
            trainable.parameter.data = nowhere.expand(trainable.parameter.shape)

    def unit_behind(self, tensor: Tensor) -> Unit | None:
        """Return the unit whose whole values `tensor` is a view of, if there is one."""
        return self._by_storage.get(tensor.untyped_storage()._cdata)

    def bytes_by_category(self) -> dict[str, int]:
        here = sum(unit.full.nbytes for unit in self.units if unit.full is not None)
        return dict(Counter(super().bytes_by_category()) + Counter(parameters=here))
