"""Why an answer about time is undecided, and how much more data would decide it. Pure."""

import bisect
import math

from zbench.analysis.evidence import Evidence
from zbench.analysis.ratios import Contrast, reach

LEAST = 4
"""Blocks, or processes a side, that are ever recommended: fewer show too little of the noise."""

POWER = 0.8
"""`needed` is the number of processes that would settle the question with this probability."""

DETECTED = 0.9
"""`detectable` is the change that would have been called a regression with this probability."""

_MOST_NEEDED = 1000


def detectable(contrast: Contrast, margin: float, level: float) -> float | None:
    """Return the slowdown (a logarithm) that would have been called nine times in ten; None if unknown."""
    return margin + contrast.reach(level, DETECTED) if contrast.degrees > 0 else None


def reason(evidence: Evidence, needed: int | None) -> str:
    """Return what keeps a comparison from its answer, and the remedy."""
    unit = "blocks" if evidence.paired else "processes a side"
    if needed is None and evidence.floor > evidence.contrast.error / 2:
        return "it is within the machine's noise between runs; use --paired"
    if needed is None:
        return f"the change is too near the margin to decide with any reasonable number of {unit}"
    remedy = "" if evidence.paired else f": zbench sweep --resume RUN --repeats {needed}"
    return f"about {needed} {unit} would decide{remedy}"


def needed_n(evidence: Evidence, margin: float, level: float, comparisons: int) -> int | None:
    """Return how many pairs, or processes a side, would decide with power 0.8 at this effect and spread.

    None where more than 1,000 would be needed. Where nothing is known of the spread, the least.
    """
    contrast = evidence.contrast
    floor = evidence.floor
    n = min(evidence.n_base, evidence.n_head)
    if contrast.degrees <= 0 or n < 2:
        return LEAST
    level = level / comparisons if contrast.value > margin else level
    distance = abs(contrast.value - margin)
    spread = (contrast.error**2 - floor**2) * n
    groups = contrast.degrees / (n - 1) if evidence.paired else 2.0

    def decides(count: int) -> bool:
        errors = reach(groups * (count - 1), level, POWER)
        return distance >= errors * math.sqrt(spread / count + floor**2)

    counts = range(LEAST, _MOST_NEEDED + 1)
    index = bisect.bisect_left(counts, True, key=decides)  # more processes only narrow the interval
    return counts[index] if index < len(counts) else None
