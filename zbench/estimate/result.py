"""The result of a simulation as plain data. Does not import torch, for the command line and the search."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Product:
    """`count` matrix products of one size. flops, nbytes: FLOPs and bytes read and written of each."""

    flops: float
    nbytes: int
    count: int


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one step of one rank.

    operators: number of torch operators, including views. products: the matrix products. streamed_bytes:
    bytes that the other operators read and write. host_bytes: bytes read and written in offloaded memory.
    copied_bytes: bytes copied between device and host.
    """

    operators: int = 0
    products: list[Product] = field(default_factory=list)
    streamed_bytes: int = 0
    host_bytes: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepLaunches:
    """What one step of one rank launches, sends and waits for.

    collectives: name -> calls, bytes of the whole buffers, and what this rank sends, as in a ring (the
    built-in engine on a CPU: the traffic of `Estimate`). launches: operators on the device. gradient_copies:
    copies of gradients from autograd's memory. gathers: those of weights for their use, `calls`, and the
    `exposed` ones, which were begun when they were needed. inter_node_bytes: that leave a node, from all its
    ranks. norm_bytes: what this rank sends for the norm and the flags. host_waits: times that the host waits
    for the device.
    """

    collectives: dict[str, dict[str, int]] = field(default_factory=dict)
    launches: int = 0
    gradient_copies: int = 0
    gathers: dict[str, int] = field(default_factory=dict)
    inter_node_bytes: int = 0
    norm_bytes: int = 0
    host_waits: int = 0


@dataclass(frozen=True, slots=True)
class HeldAllocation:
    """Allocations from one place in the code that were live at the peak; nbytes is their sum."""

    nbytes: int
    count: int
    category: str
    where: str
    shape: tuple[int, ...]
    dtype: str


CONTEXT = (512 << 20, 1 << 30)
"""Bytes of a card, at least and at most, for the CUDA context and its libraries."""
_COMMUNICATOR = 1280 << 20
"""Bytes, at most. NCCL took 1.2 GB of a rank for each on an H100 (results/benchmarks/gpu.md)."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """What torch's caching allocator reserves on a card in a step.

    peak_bytes: with memory without end. least_bytes: the least memory in which the step runs, to 1 %; then
    cached memory is released again and again, which takes time. communicators: of the rank.
    """

    peak_bytes: int
    least_bytes: int
    expandable_segments: bool
    communicators: int = 0

    @property
    def beside(self) -> tuple[int, int]:
        """Bytes of the card beside the allocator, at least and at most: the CUDA context, communicators."""
        least, most = CONTEXT
        return least, most + self.communicators * _COMMUNICATOR


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of one rank of one configuration.

    peak_device_bytes, peak_host_bytes: peaks of one step. build_device_bytes, build_host_bytes: peaks while
    model and engine are built; a model that is made whole counts on the device. device, host: category ->
    bytes at the step's peaks. phase: the phase of the step with the device's peak. alive: the largest
    allocations at that peak. traffic: collective -> calls and payload bytes of one step; of torch's engines
    the collectives of `counts`. flops: model FLOPs of one step. work: the work of its operators. counts: what
    it launches and waits for. parameters: elements of the whole model. reserved: on a card.
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
    counts: StepLaunches = field(default_factory=StepLaunches)
    parameters: int = 0
    reserved: Reserved | None = None
    build_host_bytes: int = 0

    @property
    def least_device_bytes(self) -> int:
        """Return what torch's allocator needs to build and to train: on a card what it reserves at least."""
        step = self.peak_device_bytes if self.reserved is None else self.reserved.least_bytes
        return max(step, self.build_device_bytes)

    @property
    def needed_device_bytes(self) -> int:
        """Return what building and training need: on a card also the most beside the allocator."""
        return self.least_device_bytes + (0 if self.reserved is None else self.reserved.beside[1])

    @property
    def needed_host_bytes(self) -> int:
        """Return the peak of building and training, in host memory."""
        return max(self.peak_host_bytes, self.build_host_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes that building and a step may take: of one device, and of one node's host; None: any number."""

    device: int | None = None
    host: int | None = None

    def spare(self, estimate: Estimate, ranks: int) -> dict[str, int]:
        """Return `device` and `host`, if limited -> bytes that are left. ranks: of one node."""
        spare = {}
        if self.device is not None:
            spare["device"] = self.device - estimate.needed_device_bytes
        if self.host is not None:
            spare["host"] = self.host - ranks * estimate.needed_host_bytes
        return spare

    def fits(self, estimate: Estimate, ranks: int) -> bool:
        """Return whether building and a step fit."""
        return all(spare >= 0 for spare in self.spare(estimate, ranks).values())


@dataclass(frozen=True, slots=True)
class NotSimulated:
    """Why a configuration could not be simulated."""

    reason: str


SimulationOutcome = Estimate | NotSimulated
