"""The memories that hold flat buffers, and copies between them."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.protocols import Work
from zbench.engine.transport.works import Done


class Copy(Work, Protocol):
    """A copy between two memories. After `wait` the target may be read, after `release` the source may be
    written, each by whatever computes in that memory: the host, or the model's device in stream order.
    """

    def release(self) -> object: ...


class Memory(Protocol):
    """Allocates flat buffers, and copies between them and the model's device."""

    @property
    def device(self) -> torch.device:
        """The device of its buffers; computations on a device of this type write to them directly."""
        ...

    @property
    def prefix(self) -> str:
        """Prefix of its memory categories: empty for the model's device, `host_` for offloaded state."""
        ...

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a zeroed buffer [numel], aligned to 64 bytes."""
        ...

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a buffer [numel] that is not initialised, aligned to 64 bytes."""
        ...

    def occupied(self, nbytes: int) -> int:
        """Return the bytes that the allocator holds for a buffer of `nbytes`."""
        ...

    def copy_in(self, source: Tensor, target: Tensor) -> Copy:
        """Start copying `source`, on the model's device, into `target`, a buffer of this memory."""
        ...

    def copy_out(self, source: Tensor, target: Tensor) -> Copy:
        """Start copying `source`, a buffer of this memory, into `target` on the model's device."""
        ...


class Copied(Done):
    """A copy that is done, or that later work on both memories is ordered behind."""

    def release(self) -> None:
        """Return at once."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The model's own device."""

    device: torch.device
    prefix: str = ""

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=self.device)

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(numel, dtype=dtype, device=self.device)

    def occupied(self, nbytes: int) -> int:
        return nbytes

    def copy_in(self, source: Tensor, target: Tensor) -> Copy:
        target.copy_(source)
        return Copied()

    def copy_out(self, source: Tensor, target: Tensor) -> Copy:
        target.copy_(source)
        return Copied()


class _CopyEvent:
    """A copy between the device and the host. The device's streams wait for it without the host; the host
    waits until the device has reached it.
    """

    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event, self._device = event, device

    def is_completed(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def _on_host(self) -> None:
        self._event.synchronize()

    def _on_device(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class _CopyToHost(_CopyEvent):
    def wait(self) -> None:
        self._on_host()

    def release(self) -> None:
        self._on_device()


class _CopyToDevice(_CopyEvent):
    def wait(self) -> None:
        self._on_device()

    def release(self) -> None:
        self._on_host()


class PinnedHostMemory:
    """CPU memory for offloaded state: page-locked beside an accelerator; ordinary memory, but separate, on a
    CPU.
    """

    prefix = "host_"
    device = torch.device("cpu")

    def __init__(self, device: torch.device) -> None:
        self.pinned = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.pinned else None  # type: ignore[no-untyped-call]

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numel, dtype=dtype, pin_memory=self.pinned)

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(numel, dtype=dtype, pin_memory=self.pinned)

    def occupied(self, nbytes: int) -> int:
        """Torch's allocator of page-locked memory rounds each block up to a power of two."""
        return 1 << (nbytes - 1).bit_length() if self.pinned and nbytes else nbytes

    def copy_in(self, source: Tensor, target: Tensor) -> Copy:
        """Copy on a stream of its own, so that copies run beside the computation."""
        if self.stream is None:
            target.copy_(source)
            return Copied()
        self.stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self.stream)
        source.record_stream(self.stream)  # it may be freed before the copy has been made
        return _CopyToHost(event, source.device)

    def copy_out(self, source: Tensor, target: Tensor) -> Copy:
        """Copy on the current stream, so what is launched there later needs no other order."""
        target.copy_(source, non_blocking=True)
        if self.stream is None:
            return Copied()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(target.device))
        return _CopyToDevice(event, target.device)


@dataclass(frozen=True, slots=True)
class Memories:
    """What the engine may keep buffers in: the model's own device, and the host."""

    local: Memory
    host: Memory

    @classmethod
    def of(cls, device: torch.device) -> "Memories":
        """Return the memories of a model on `device`."""
        return cls(DeviceMemory(device), PinnedHostMemory(device))


def transfer(source: Tensor, at: Memory, target: Tensor, to: Memory) -> Copy:
    """Start copying from one of these memories to another."""
    return to.copy_in(source, target) if to.prefix else at.copy_out(source, target)
