"""Where a step's time goes. Host time: on CUDA, work launched in one phase may be waited for in a later
one."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

PHASES = ("forward", "backward", "reduce", "optimizer", "gather")
"""forward: the loss. backward: autograd and gradient hooks. optimizer: `step()`. reduce, gather: the time
that the thread of the step spends launching collectives and waiting for them, wherever it happens; the other
three are without it, so the five add up to the step. Communication that runs beside compute costs none of it.
"""


def synchronize(device: torch.device) -> None:
    """Return when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class PhaseClock:
    """Adds up the seconds spent in each phase; a phase entered inside another pauses the outer one.

    Phases may be entered from autograd's thread, while the step's own thread waits for it, but not from two
    threads that run at once.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0
        self.annotate: Callable[[str], AbstractContextManager[object]] | None = None
        """Entered around each phase, while a profiler runs."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time as `name`."""
        self._charge()
        self._open.append(name)
        try:
            with self.annotate(name) if self.annotate is not None else nullcontext():
                yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        """Give the time since the last change to the innermost phase."""
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """Return the seconds of every phase since the last call, and start from zero."""
        taken = {name: self._seconds.get(name, 0.0) for name in PHASES}
        self._seconds.clear()
        return taken
