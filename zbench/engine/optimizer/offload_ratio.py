"""Which share of the optimizer state is offloaded to the host: a given one, or as much as backward
can hide.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from zbench.engine.protocols import Collectives, Tag

STEPS = 64  # `auto` decides in so many steps: noise in a measurement rarely changes what is chosen
SEEN = 3  # steps whose backwards are timed; the first backward, a warm-up, is left out


_COSTS = Tag("the measured costs of offloading")


def largest_hidden(copy: float, update: float, backward: float) -> float:
    """Return the largest share of the state whose copies and updates fit under backward; the device keeps the
    rest.

    All times are in seconds: `copy` and `update` of the whole state, and one `backward`. Copies and updates
    overlap, so the slower of the two decides.
    """
    needed = max(copy, update)
    if needed <= backward:
        return 1.0
    return math.floor(STEPS * backward / needed) / STEPS


class OffloadRatio:
    """The share of the state on the host, `value`: here the one that was asked for."""

    def __init__(self, value: float) -> None:
        self.value = value

    def watching(self) -> AbstractContextManager[None]:
        """Return the context that a backward runs in."""
        return nullcontext()

    def begin(self, steps: int) -> None:
        """The first backward of a step begins, after so many steps."""

    def decide(self, collectives: Collectives, steps: int) -> bool:
        """Return whether `value` has changed; all ranks ask at the end of a step, after so many steps."""
        return False


class MeasuredRatio(OffloadRatio):
    """1 until some steps have been timed; then `largest_hidden` of the slowest rank's copies and updates and
    the fastest rank's backward. Ranks decide after the same number of steps.

    costs: returns the seconds of copying and of updating this rank's whole state. finish: waits for the
    device.
    """

    def __init__(
        self,
        costs: Callable[[], tuple[float, float]],
        finish: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(1.0)
        self._costs, self._finish, self._clock = costs, finish, clock
        self._backwards: list[float] = []
        self._since: int | None = None
        self._decided = False

    def watching(self) -> AbstractContextManager[None]:
        return nullcontext() if self._decided else self._timed()

    def begin(self, steps: int) -> None:
        self._since = steps if self._since is None else min(self._since, steps)

    def decide(self, collectives: Collectives, steps: int) -> bool:
        if self._decided or self._since is None or steps - self._since < SEEN:
            return False
        self._decided = True
        copy, update = self._costs()
        backward = statistics.median(self._backwards[1:] or [math.inf])
        mine = torch.tensor([-copy, -update, backward], dtype=torch.float64)
        copy, update, backward = collectives.all_gather_small(mine, _COSTS).amin(dim=0).tolist()
        self.value = largest_hidden(-copy, -update, backward)
        return self.value != 1.0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._finish()
        begin = self._clock()
        yield
        self._finish()
        self._backwards.append(self._clock() - begin)
