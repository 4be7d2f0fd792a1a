"""Master weights of a section whose optimizer state is shared out between homes."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from zbench.engine.home import Home
from zbench.engine.masters import FarMasters, Masters, OwnMasters, ParametersThemselves
from zbench.engine.offload.flat import Flat, Placement
from zbench.engine.parameters import Parameters
from zbench.engine.partition import Extent, Segment, Shard


def masters_of(
    shard: Shard, placement: Placement, parameters: Parameters, dtypes: Sequence[torch.dtype], stored: Home
) -> list[Masters]:
    """Return the masters of each section; its parameters, of dtypes[section], are kept in `stored`."""
    found: list[Masters] = []
    for section, dtype in enumerate(dtypes):
        part = placement.within(shard.local(shard.layout.section_extent(section)))
        kinds = [
            (extents, _in_home(home, extents, parameters, dtype, stored)) for home, extents in part.parts
        ]
        found.append(kinds[0][1] if len(kinds) == 1 else SharedOutMasters(kinds))
    return found


def _in_home(
    home: Home, extents: Sequence[Extent], parameters: Parameters, dtype: torch.dtype, stored: Home
) -> Masters:
    if dtype == torch.float32 and home == stored:
        return ParametersThemselves(parameters)
    flat = Flat(home, extents, torch.float32)
    if home.device.type == stored.device.type:
        return OwnMasters(parameters, flat)
    return FarMasters(parameters, flat, Flat(home, extents, dtype))


class SharedOutMasters:
    """Each run is in the hands of one of several kinds."""

    def __init__(self, kinds: Sequence[tuple[Sequence[Extent], Masters]]) -> None:
        self._kinds = kinds
        self.flats = [flat for _, masters in kinds for flat in masters.flats]

    def of(self, run: Segment) -> Tensor:
        return self._kind(run).of(run)

    def out(self, run: Segment) -> Tensor | None:
        return self._kind(run).out(run)

    def deliver(self, run: Segment) -> None:
        self._kind(run).deliver(run)

    def bytes_by_category(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for _, masters in self._kinds:
            total.update(masters.bytes_by_category())
        return dict(total)

    def _kind(self, run: Segment) -> Masters:
        return next(m for extents, m in self._kinds if any(e.start <= run.local < e.stop for e in extents))
