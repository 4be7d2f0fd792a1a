"""The order of a device's streams. A model that computes on one stream needs none of it."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def used_on_current_stream(tensor: Tensor) -> None:
    """Have the memory of a tensor that is about to be freed stay as it is until the current stream, which may
    be another than the one that it was allocated on, has passed this point.
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
        self._tensor, self._event = tensor, None
        if tensor.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(tensor.device))

    def read_here(self) -> None:
        """Have the current stream read it behind what filled it; its memory stays until it has."""
        if self._event is not None:
            current = torch.cuda.current_stream(self._tensor.device)
            current.wait_event(self._event)
            self._tensor.record_stream(current)
