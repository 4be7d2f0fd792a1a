"""Master weights of one section: the float32 values that Adam updates, and how they become parameters."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.memory.buffers import Flat, Placement
from zbench.engine.memory.kinds import Home
from zbench.engine.parameters.replicated import Parameters
from zbench.engine.partition import Extent, Segment, Shard


class Masters(Protocol):
    """Float32 weights of the segments this rank owns in one section. `flats`: the memory of their own."""

    flats: list[Flat]

    def of(self, run: Segment) -> Tensor:
        """Return the master weights [run.length] float32."""
        ...

    def out(self, run: Segment) -> Tensor | None:
        """Return where Adam writes the copy in the parameter's dtype, or None where the master is the
        parameter.
        """
        ...

    def deliver(self, run: Segment) -> None:
        """Bring what Adam wrote to the parameters, where it could not write to them itself."""
        ...

    def bytes_by_category(self) -> dict[str, int]: ...


class ParametersThemselves:
    """Float32 parameters in the optimizer's own home need no second copy."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.flats: list[Flat] = []

    def of(self, run: Segment) -> Tensor:
        return self._parameters.owned(run)

    def out(self, run: Segment) -> Tensor | None:
        return None

    def deliver(self, run: Segment) -> None:
        return

    def bytes_by_category(self) -> dict[str, int]:
        return {}


class OwnMasters:
    """A float32 copy in `flat`'s home; Adam writes the parameters' copy in the same pass."""

    def __init__(self, parameters: Parameters, flat: Flat) -> None:
        self._parameters, self._flat = parameters, flat
        self.flats = [flat]

    def of(self, run: Segment) -> Tensor:
        return self._flat.run(run.local, run.length)

    def out(self, run: Segment) -> Tensor | None:
        return self._parameters.owned(run)

    def deliver(self, run: Segment) -> None:
        return

    def bytes_by_category(self) -> dict[str, int]:
        return {f"{self._flat.home.prefix}master": self._flat.nbytes}


class FarMasters(OwnMasters):
    """Masters in a memory that is not the parameters': Adam writes to a staging buffer, which is copied
    over.
    """

    def __init__(self, parameters: Parameters, flat: Flat, staged: Flat) -> None:
        super().__init__(parameters, flat)
        self._staged = staged

    def out(self, run: Segment) -> Tensor | None:
        return self._staged.run(run.local, run.length)

    def deliver(self, run: Segment) -> None:
        staged = self._staged.run(run.local, run.length)
        self._parameters.owned(run).copy_(staged, non_blocking=True)

    def bytes_by_category(self) -> dict[str, int]:
        return {**super().bytes_by_category(), f"{self._flat.home.prefix}buckets": self._staged.nbytes}


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
