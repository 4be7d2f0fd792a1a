"""A series in one line of a terminal."""

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return the last `width` values as bars from the lowest to the highest; equal ones are in the middle."""
    shown = list(values)[-width:]
    low, high = min(shown), max(shown)
    if high == low:
        return _BARS[3] * len(shown)
    return "".join(_BARS[round((len(_BARS) - 1) * (value - low) / (high - low))] for value in shown)
