"""The memories that hold flat buffers, copies between them, and the order of a device's streams.

A model that computes on one stream needs no such order.
"""

import mmap
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.engine.protocols import Copy as Copy
from zbench.engine.protocols import Memory as Memory
from zbench.engine.transport.works import Done, StreamEnd


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
        return _copied(source, target)

    def copy_out(self, source: Tensor, target: Tensor) -> Copy:
        return _copied(source, target)


def _copied(source: Tensor, target: Tensor) -> Done:
    target.copy_(source)
    return Done()


class _CopyEvent(StreamEnd):
    """A copy between the device and the host on `stream`, ordered behind what the current stream has been
    given. The device's streams wait for it without the host; the host waits until the device has reached it.
    near: the tensor on the device.
    """

    def __init__(self, source: Tensor, target: Tensor, stream: torch.cuda.Stream, near: Tensor) -> None:
        self._stream = stream
        stream.wait_stream(torch.cuda.current_stream(near.device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        near.record_stream(stream)  # it may be freed before the copy has been made
        super().__init__(stream)

    is_completed = StreamEnd.query

    def behind(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)


class _CopyToHost(_CopyEvent):
    wait, release = StreamEnd.synchronize, StreamEnd.order


class _CopyToDevice(_CopyEvent):
    wait, release = StreamEnd.order, StreamEnd.synchronize


class _LockedPages(mmap.mmap):
    """Whole pages that CUDA has locked; they are released when the last tensor in them has gone."""

    address = 0
    device = torch.device("cuda")

    def lock(self, address: int, device: torch.device) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            torch.cuda.check_error(cudart.cudaHostRegister(address, len(self), 0))
        self.address, self.device = address, device

    def __del__(self) -> None:
        if self.address:
            with torch.cuda.device(self.device):  # this may be any thread
                torch.cuda.synchronize(self.device)  # a copy may be under way
                torch.cuda.cudart().cudaHostUnregister(self.address)  # type: ignore[no-untyped-call]


def _locked(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor in locked pages of its own, filled with zeros; RuntimeError where CUDA refuses."""
    pages = _LockedPages(-1, _whole_pages(numel * dtype.itemsize))
    tensor = torch.frombuffer(pages, dtype=dtype, count=numel)
    pages.lock(tensor.data_ptr(), device)
    return tensor


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


class PinnedHostMemory:
    """CPU memory for offloaded state: page-locked beside an accelerator; ordinary memory, but separate, on a
    CPU.

    Pages are locked here and not by torch, whose allocator rounds each block up to a power of two.
    """

    prefix = "host_"
    device = torch.device("cpu")

    def __init__(self, device: torch.device) -> None:
        self.pinned = device.type == "cuda"
        self._beside = device
        self._in, self._out = (torch.cuda.Stream(device) if self.pinned else None for _ in range(2))  # type: ignore[no-untyped-call]

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self.empty(numel, dtype).zero_()

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        if self.pinned and numel:
            return _locked(numel, dtype, self._beside)
        return torch.empty(numel, dtype=dtype, device="cpu")

    def occupied(self, nbytes: int) -> int:
        """Return the bytes of memory that a block of `nbytes` takes."""
        return _whole_pages(nbytes) if self.pinned else nbytes

    def copy_in(self, source: Tensor, target: Tensor) -> Copy:
        """Copy on a stream of its own, so that copies run beside the computation."""
        return _CopyToHost(source, target, self._in, source) if self._in else _copied(source, target)

    def copy_out(self, source: Tensor, target: Tensor) -> Copy:
        """Copy on another stream of its own, likewise."""
        return _CopyToDevice(source, target, self._out, target) if self._out else _copied(source, target)


@dataclass(frozen=True, slots=True)
class Memories:
    """What the engine may keep buffers in: the model's own device, and the host."""

    local: Memory
    host: Memory

    @classmethod
    def of(cls, device: torch.device) -> "Memories":
        """Return the memories of a model on `device`."""
        return cls(DeviceMemory(device), PinnedHostMemory(device))


def used_on_current_stream(tensor: Tensor) -> None:
    """Have the memory of a tensor that is about to be freed stay as it is until the current stream has passed
    this point. The tensor may have been allocated on another stream.
    """
    if tensor.device.type == "cuda":
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


class GradientStream:
    """The stream on which the gradients of one backward are copied, reduced and added: that of the caller of
    `engine.backward`. Autograd computes a gradient on the stream of its forward, and calls hooks there. Were
    they to launch on it, a bucket that two streams have written would be sent behind one of them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def begin(self) -> None:
        """Take the caller's stream for the backward that begins."""
        if self._device.type == "cuda":
            self._stream = torch.cuda.current_stream(self._device)

    def behind(self, gradient: Tensor) -> AbstractContextManager[object]:
        """Return a context on that stream, ordered behind the current one, which has written `gradient`."""
        if self._stream is None:
            return nullcontext()
        current = torch.cuda.current_stream(self._device)
        if current == self._stream:
            return nullcontext()
        self._stream.wait_stream(current)
        gradient.record_stream(self._stream)
        return torch.cuda.stream(self._stream)


class Filled:
    """A tensor that the current stream has filled, to be read on any."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._end = tensor, None
        self._readers: set[object] = set()
        if tensor.device.type == "cuda":
            self._end = StreamEnd(torch.cuda.current_stream(tensor.device))

    def read_here(self) -> None:
        """Have the current stream read it behind what filled it; its memory stays until it has."""
        if self._end is not None:
            current = torch.cuda.current_stream(self._tensor.device)
            if current not in self._readers:  # a module reads each of its weights
                self._end.order()
                self._tensor.record_stream(current)
                self._readers.add(current)
