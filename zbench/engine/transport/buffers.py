"""Buffers of collectives: where they lie, and pools of those that are used again and again."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zbench.engine.protocols import Memory
from zbench.engine.transport.works import StreamEnd


def storage_of(tensor: Tensor) -> int:
    """Return what identifies a tensor's storage, as long as the storage lives. A fake tensor has one, too."""
    return int(tensor.untyped_storage()._cdata)


def place(tensor: Tensor) -> tuple[int, int]:
    """Return the storage of a tensor and the byte at which the tensor begins in it."""
    return storage_of(tensor), int(tensor.storage_offset()) * tensor.element_size()


def in_place(tensor: Tensor, view: Tensor) -> bool:
    """Whether a tensor has the memory, the shape and the strides of a view."""
    if not share_storage(tensor, view):
        return False
    return (tensor.storage_offset(), tensor.shape, tensor.stride()) == (
        view.storage_offset(),
        view.shape,
        view.stride(),
    )


def share_storage(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors may overlap."""
    return storage_of(one) == storage_of(other)


def to_host(values: Tensor, attend: Callable[[], None] | None = None) -> Tensor:
    """Return values in CPU memory; for those of a device, waits until it has them there.

    attend: waits for the current stream (`Agreement.attend`), where the values come from other ranks.
    """
    if attend is not None:
        attend()
    if values.device.type != "cuda":
        return values.cpu()
    with torch.cuda.device(values.device):  # pages are locked by the current one
        there = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        there.copy_(values, non_blocking=True)
        torch.cuda.current_stream().synchronize()
    return there


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device, which the host does not wait for."""
    there = values.device.type == device.type
    return values if there else values.pin_memory().to(device, non_blocking=True)


@dataclass(slots=True)
class Loan:
    """A buffer [n], and the `whole` buffer of a pool that it is a part of, if it is not somebody's own."""

    buffer: Tensor
    pool: "ScratchPool | None" = None
    whole: Tensor | None = None

    def give_back(self) -> None:
        """Let the memory be used again; the borrower must not use it any more."""
        if self.pool is not None and self.whole is not None:
            self.pool.free.append(self.whole)


@dataclass(slots=True)
class ScratchPool:
    """Lends uninitialised buffers and keeps them between uses: of `memory`, or ordinary ones of `device`.
    `bytes`: what it holds now, in use or not. `free`: those that are not in use.
    """

    device: torch.device
    memory: Memory | None = None
    bytes: int = 0
    free: list[Tensor] = field(default_factory=list)

    def lend(self, numel: int, dtype: torch.dtype) -> Loan:
        """Return an uninitialised buffer [numel]: a part of the smallest free one that fits, or a new one."""
        fitting = [t for t in self.free if t.dtype == dtype and t.numel() >= numel]
        if fitting:
            whole = min(fitting, key=Tensor.numel)
            self.free = [t for t in self.free if t is not whole]
        elif self.memory is None:
            whole = torch.empty(numel, dtype=dtype, device=self.device)
        else:
            whole = self.memory.empty(numel, dtype)
        if not fitting:
            self.bytes += self._occupied(whole)
        return Loan(whole[:numel], self, whole)

    def drop(self) -> None:
        """Free every buffer that is not in use."""
        self.bytes -= sum(map(self._occupied, self.free))
        self.free.clear()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        return {f"{self.memory.prefix if self.memory else ''}buckets": self.bytes}

    def _occupied(self, buffer: Tensor) -> int:
        """Return the bytes that the allocator holds for a buffer."""
        return buffer.nbytes if self.memory is None else self.memory.occupied(buffer.nbytes)


class CudaStreams:
    """What `Agreement` asks of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def enter(self) -> None:
        torch.cuda.set_device(self._device)

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def place(self, stream: torch.cuda.Stream) -> StreamEnd:
        return StreamEnd(stream)


def streams_of(device: torch.device) -> CudaStreams | None:
    """Return what is to be known of a device's streams; None for one whose collectives the host waits for."""
    return CudaStreams(device) if device.type == "cuda" else None
