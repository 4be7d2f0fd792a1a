"""The clocks of Python, as they are before any code of a user runs.

A model, or a library that freezes time for tests, can replace `time.perf_counter`, also where another module
has imported the function by name. No module has these clocks under a name: each is in a closure.
"""

import time
from collections.abc import Callable


def _kept(clock: Callable[[], float]) -> Callable[[], float]:
    def read() -> float:
        return clock()

    return read


perf_counter = _kept(time.perf_counter)
monotonic = _kept(time.monotonic)
wall_time = _kept(time.time)
process_time = _kept(time.process_time)
