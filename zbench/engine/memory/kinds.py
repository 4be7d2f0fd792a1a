"""Where a flat buffer lives. A memory is chosen once; nothing downstream asks which one it is."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.protocols import Work
from zbench.engine.transport.works import Done


class Memory(Protocol):
    """Allocates flat buffers and brings device tensors into them."""

    @property
    def device(self) -> torch.device:
        """Where buffers are; a computation on a device of this type writes to them directly."""
        ...

    @property
    def prefix(self) -> str:
        """Prefix of the memory categories of what lives here: empty on the device, `host_` offloaded."""
        ...

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a zeroed buffer [numel], aligned to 64 bytes."""
        ...

    def copy_in(self, source: Tensor, target: Tensor) -> Work:
        """Start copying `source` into `target`, a buffer of this memory; it may be read after `wait`."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The model's own device."""

    device: torch.device
    prefix: str = ""

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=self.device)

    def copy_in(self, source: Tensor, target: Tensor) -> Work:
        target.copy_(source)
        return Done()


class _CopyEvent:
    """A copy on its own stream."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()

    def is_completed(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]


class PinnedHostMemory:
    """CPU memory beside the device's: page-locked where there is an accelerator, ordinary (yet apart) on
    the CPU.
    """

    prefix = "host_"
    device = torch.device("cpu")

    def __init__(self, device: torch.device) -> None:
        self.pinned = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.pinned else None  # type: ignore[no-untyped-call]

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numel, dtype=dtype, pin_memory=self.pinned)

    def copy_in(self, source: Tensor, target: Tensor) -> Work:
        if self.stream is None:
            target.copy_(source)
            return Done()
        self.stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
            source.record_stream(self.stream)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self.stream)
        return _CopyEvent(event)
