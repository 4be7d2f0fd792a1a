"""Measures the phases of a step in host time: on CUDA, a later phase may wait for work that an earlier one
launched."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from zbench import clocks

PHASES = ("forward", "backward", "reduce", "optimizer", "gather")
"""forward: the loss. backward: autograd and gradient hooks. optimizer: `step()`. reduce, gather: time in
which the step's thread launches collectives and waits for them. The other three exclude this time, so the
five add up to the step. Communication that overlaps with computation is not in reduce and gather.
"""


def synchronize(device: torch.device) -> None:
    """Wait until the device has completed all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class PhaseClock:
    """Adds up the seconds in each phase; a phase inside another pauses the outer one.

    Autograd's thread may enter phases while the step's thread waits for it. Two threads that run at the same
    time may not.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0
        self.annotate: Callable[[str], AbstractContextManager[object]] | None = None
        """Returns a context for each phase while a profiler runs; None otherwise."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the body as phase `name`."""
        self._charge()
        self._open.append(name)
        try:
            with self.annotate(name) if self.annotate is not None else nullcontext():
                yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        """Add the time since the last change of phase to the innermost phase."""
        now = clocks.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """Return phase -> seconds since the last call, and reset them to zero."""
        taken = {name: self._seconds.get(name, 0.0) for name in PHASES}
        self._seconds.clear()
        return taken
