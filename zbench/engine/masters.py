"""Master weights of one section: the float32 values that Adam updates, and how they become parameters."""

from typing import Protocol

from torch import Tensor

from zbench.engine.offload.flat import Flat
from zbench.engine.parameters import Parameters
from zbench.engine.partition import Segment


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
