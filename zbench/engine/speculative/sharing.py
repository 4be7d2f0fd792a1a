"""Whether updates run under backward: always, or, where backward needs every processor, if that is faster."""

import statistics
import time
from collections.abc import Callable

SAMPLES = 4
"""Steps of each kind that are timed, after one that is not."""


class UnderBackward:
    """Updates run under backward in every step: they have processors of their own, or the user wants it."""

    now = True
    decided = True

    def backward_begins(self) -> None:
        """A backward begins; it may be the step's last."""

    def step_ends(self) -> None:
        """The step has been taken."""


class IfFaster(UnderBackward):
    """Every second step updates under backward, the others after it with all threads, until both are timed;
    then the faster way stays. Both give the same bits, so each rank may choose by itself.

    A step is timed from its last backward to its end. clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._began = clock, 0.0
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self.decided = False

    def backward_begins(self) -> None:
        self._began = self._clock()

    def step_ends(self) -> None:
        if self.decided:
            return
        self._seconds[self.now].append(self._clock() - self._began)
        self.decided = all(len(seconds) > SAMPLES for seconds in self._seconds.values())
        if self.decided:
            under, after = (statistics.median(self._seconds[now][1:]) for now in (True, False))
            self.now = under < after
        else:
            self.now = not self.now
