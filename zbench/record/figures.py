"""Figures that no measurement gives, such as a step of 0 s: a file was edited, or user code set the clock."""

import math
from collections.abc import Iterator
from itertools import chain

from zbench.record.record import Record

_LONGEST_STEP_S = 1e6
_MOST_BYTES = 1 << 60
_ROUNDING = 1e-6


def impossible_figure(record: Record) -> str | None:
    """Return the first figure of a record that no measurement gives, in words; None if all are possible."""
    for figure, value, possible in _figures(record):
        if not possible:
            return f"{figure} is {value}, which no measurement gives"
    return None


def _figures(record: Record) -> Iterator[tuple[str, float | None, bool]]:
    """Yield the name and the value of each figure, and whether the value is possible."""
    timing, memory, heat = record.timing, record.memory, record.heat
    if timing is not None:
        for seconds in [timing.median_step_s, *timing.step_seconds]:
            yield "a step time", seconds, 0 < seconds < _LONGEST_STEP_S
        median = timing.median_step_s
        low = min(timing.step_seconds, default=median) * (1 - _ROUNDING)
        high = max(timing.step_seconds, default=median) * (1 + _ROUNDING)
        yield "median_step_s", median, low <= median <= high
        for key in ("tokens_per_s", "samples_per_s"):
            rate = getattr(timing, key)
            yield key, rate, rate is None or 0 <= rate < math.inf
    if heat is not None:
        for seconds in chain(heat.turn_seconds, heat.alone, *heat.machine.values()):
            yield "the time of a turn", seconds, 0 < seconds < _LONGEST_STEP_S
    if memory is not None:
        for key in ("peak_device_bytes", "peak_host_bytes", "peak_rss_bytes"):
            size = getattr(memory, key)
            yield key, size, size is None or 0 <= size < _MOST_BYTES
    for name, traffic in record.traffic.items():
        yield f"traffic.{name}", traffic.bytes, traffic.calls >= 0 and 0 <= traffic.bytes < _MOST_BYTES
    elapsed = record.elapsed_s
    yield "elapsed_s", elapsed, elapsed is None or 0 <= elapsed < math.inf
