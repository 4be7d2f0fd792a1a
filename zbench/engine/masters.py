"""Master weights of one section: the float32 values that Adam updates, and how they become parameters."""

from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.home import Home
from zbench.engine.parameters import Parameters
from zbench.engine.partition import Extent, Segment


class Masters(Protocol):
    """Float32 weights of the segments this rank owns in one section. `buffers`: the memory of their own."""

    buffers: list[Tensor]

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
        self.buffers: list[Tensor] = []

    def of(self, run: Segment) -> Tensor:
        return self._parameters.owned(run)

    def out(self, run: Segment) -> Tensor | None:
        return None

    def deliver(self, run: Segment) -> None:
        return

    def bytes_by_category(self) -> dict[str, int]:
        return {}


class OwnMasters:
    """A float32 copy in `home`; Adam writes the parameters' copy in the same pass. `extent` is the
    section's, local.
    """

    def __init__(self, parameters: Parameters, extent: Extent, home: Home) -> None:
        self._parameters, self._start, self._home = parameters, extent.start, home
        self.buffers = [home.zeros(extent.length, torch.float32)]

    def of(self, run: Segment) -> Tensor:
        at = run.local - self._start
        return self.buffers[0][at : at + run.length]

    def out(self, run: Segment) -> Tensor | None:
        return self._parameters.owned(run)

    def deliver(self, run: Segment) -> None:
        return

    def bytes_by_category(self) -> dict[str, int]:
        return {f"{self._home.prefix}master": self.buffers[0].nbytes}


class FarMasters(OwnMasters):
    """Masters in a memory that is not the parameters': Adam writes to a staging buffer, which is copied
    over.
    """

    def __init__(self, parameters: Parameters, extent: Extent, home: Home, dtype: torch.dtype) -> None:
        super().__init__(parameters, extent, home)
        self._staged = home.zeros(extent.length, dtype)

    def out(self, run: Segment) -> Tensor | None:
        at = run.local - self._start
        return self._staged[at : at + run.length]

    def deliver(self, run: Segment) -> None:
        staged = self.out(run)
        assert staged is not None
        self._parameters.owned(run).copy_(staged, non_blocking=True)

    def bytes_by_category(self) -> dict[str, int]:
        return {**super().bytes_by_category(), f"{self._home.prefix}buckets": self._staged.nbytes}
