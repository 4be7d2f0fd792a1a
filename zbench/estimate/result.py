"""The result of a simulation, as plain data. No torch: the command line and the search import this."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of one size: the operations and the bytes of each, and how many there are."""

    flops: float
    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step of one rank.

    operators: how many torch runs, views included. products: those that multiply matrices. streamed_bytes:
    what all others read and write. host_bytes: what is read and written in offloaded memory. copied_bytes:
    what crosses between the two.
    """

    operators: int = 0
    products: list[Product] = field(default_factory=list)
    streamed_bytes: int = 0
    host_bytes: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HeldAllocation:
    """Allocations of one place in the code that were alive at the peak."""

    nbytes: int
    count: int
    category: str
    where: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """One rank of one configuration.

    peak_device_bytes, peak_host_bytes: the most that one step holds. build_device_bytes: the most while model
    and engine are built, the whole model included. device, host: the categories at these peaks. phase: where
    in the step the device's peak is. alive: the largest allocations then. traffic: calls and payload bytes of
    one step by collective. flops: of one step's mathematics. work: what its operators do.
    """

    peak_device_bytes: int
    peak_host_bytes: int
    build_device_bytes: int
    device: dict[str, int]
    host: dict[str, int]
    phase: str
    alive: list[HeldAllocation]
    traffic: dict[str, dict[str, int]]
    flops: float | None
    work: StepWork = field(default_factory=StepWork)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class NotSimulated:
    """Why a configuration could not be simulated."""

    reason: str


SimulationOutcome = Estimate | NotSimulated
