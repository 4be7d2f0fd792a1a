"""Interrupts wait for a whole step; what is broken off all the same is refused from then on."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from zbench.errors import UsageError


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT until the block has ended, in the main thread, where Python delivers it.

    A second one is raised at once: the block may wait for a rank that never comes.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            held.clear()
            handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    for number, frame in held:
        handler(number, frame)


class Integrity:
    """Whether an engine's state is that before or after a step; `refusal` says why it is neither."""

    def __init__(self) -> None:
        self.refusal: str | None = None

    def check(self) -> None:
        """Raise UsageError if nothing can be done with the engine any more."""
        if self.refusal is not None:
            raise UsageError(self.refusal)

    @contextmanager
    def whole(self, what: str) -> Iterator[None]:
        """Refuse everything from now on if the block does not run to its end. what: what went wrong then."""
        self.refusal = f"{what}: build a new engine, and load a checkpoint"
        yield
        self.refusal = None
