"""A model of a device's streams on which nothing runs before it must, so that a missing order shows.

An operation runs when the host waits for it, or when another that was ordered behind it runs. Memory that is
freed belongs at once to whatever the stream that it was allocated on is given next, unless another stream is
recorded as using it: what the caching allocator of torch does.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from zbench.engine.memory import kinds
from zbench.engine.transport import buffers, works

GARBAGE = -1.0
CARD = 1
"""The number of the card; a thread that has not chosen it would use the first of the machine."""
_RUNNING = threading.RLock()


class Stream:
    """Operations in order, of which the first `ran` have run."""

    def __init__(self, device: object = None) -> None:
        if device is None:
            Threads.check()
        self.device = torch.device("cuda", Threads.card)
        self.operations: list[Callable[[], None]] = []
        self.ran = 0

    def give(self, operation: Callable[[], None]) -> None:
        self.operations.append(operation)

    def run(self, upto: int) -> None:
        """Run the first `upto` operations."""
        with _RUNNING:
            while self.ran < upto:
                operation = self.operations[self.ran]
                self.ran += 1
                operation()

    def synchronize(self) -> None:
        self.run(len(self.operations))

    def wait_event(self, event: "Event") -> None:
        self.give(event.reach)

    def wait_stream(self, other: "Stream") -> None:
        upto = len(other.operations)
        self.give(lambda: other.run(upto))


class Event:
    """A place in a stream. The device goes on by itself while the host asks for it again and again."""

    def __init__(self, blocking: bool = False) -> None:
        self._blocking, self._asked = blocking, 0

    def record(self, stream: Stream) -> None:
        """Torch makes the stream's device current here, and nowhere else."""
        self._stream = stream
        self._upto = len(stream.operations)

    def synchronize(self) -> None:
        Threads.check()
        assert self._blocking, "the host would wait by spinning, on a core that the optimizer needs"
        self.reach()

    def reach(self) -> None:
        """Run everything before it."""
        self._stream.run(self._upto)

    def query(self) -> bool:
        Threads.check()
        self._asked += 1
        if self._asked > 3:
            self.reach()
        return self._stream.ran >= self._upto


class Threads:
    """The current device of each thread: the first one, until a thread chooses another."""

    card = CARD
    _current = threading.local()

    @classmethod
    def current(cls) -> int:
        return getattr(cls._current, "index", 0)

    @classmethod
    def choose(cls, index: int) -> None:
        cls._current.index = index

    @classmethod
    def check(cls) -> None:
        """Raise where this thread would use another card than the model's."""
        assert cls.current() == cls.card, "a context on the first card: this thread has not chosen its own"


class Device:
    """What stands in for `torch.cuda`."""

    Stream, Event = Stream, Event

    def __init__(self, card: int = CARD) -> None:
        Threads.card = card
        Threads.choose(card)  # as a worker does for its main thread
        self.main = self._current = Stream()

    def set_device(self, device: torch.device) -> None:
        Threads.choose(device.index)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before = Threads.current()
        Threads.choose(device.index)
        yield
        Threads.choose(before)

    def current_stream(self, device: object = None) -> Stream:
        if device is None:
            Threads.check()
        return self._current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before


class Values:
    """A tensor of one value, on the device or in page-locked memory."""

    def __init__(self, device: Device, value: float = GARBAGE) -> None:
        self._cuda = device
        self.value = value
        self._own = device.current_stream()
        self._users = [self._own]
        self.device = torch.device("cuda", CARD)
        self.shape = ()
        self.dtype = torch.float32

    def write(self, value: float) -> None:
        """Give the current stream a kernel that writes."""
        self._cuda.current_stream().give(lambda: setattr(self, "value", value))

    def copy_(self, source: "Values", non_blocking: bool = False) -> "Values":
        self._cuda.current_stream().give(lambda: setattr(self, "value", source.value))
        return self

    def record_stream(self, stream: Stream) -> None:
        self._users.append(stream)

    def free(self) -> None:
        """Free it: its memory goes to the next kernel of its own stream, unless another stream uses it."""
        if all(s is self._own or s.ran == len(s.operations) for s in self._users):
            self._own.give(lambda: setattr(self, "value", GARBAGE))
            self._own.run(len(self._own.operations))


@contextmanager
def modelled() -> Iterator[tuple[Device, kinds.PinnedHostMemory]]:
    """Yield a modelled device, and page-locked memory beside it."""
    device = Device()

    def empty(*_: object, pin_memory: bool = False, **__: object) -> Values:
        if pin_memory:
            Threads.check()
        return Values(device)

    module: Any = SimpleNamespace(cuda=device, device=torch.device, empty=empty)
    with ExitStack() as stack:
        for user in (kinds, buffers, works):
            stack.enter_context(mock.patch.object(user, "torch", module))
        yield device, kinds.PinnedHostMemory(torch.device("cuda", CARD))
