"""What the machine's own noise is: a paired comparison of a version with itself."""

import math
from dataclasses import dataclass
from statistics import stdev

from zbench.analysis import statistics
from zbench.analysis.compare import Comparison

_STEP = 0.005


@dataclass(frozen=True, slots=True)
class NoiseReport:
    """Fractions. `noise` is the spread of one block's difference, the largest over configurations.

    margin: the smallest threshold at which A against A passes nineteen times in twenty.
    detectable: the smallest slowdown called at that margin with power 0.9. alarms: regressions called, which
    should be none.
    """

    blocks: int
    comparisons: int
    noise: float
    margin: float
    detectable: float
    alarms: int
    drift: float


def noise_report(comparison: Comparison) -> NoiseReport:
    """Return the report of a paired comparison whose base and head are the same version."""
    data = comparison.paired
    assert data is not None, "noise is read from a paired measurement"
    measured = [values for values in data.blocks.values() if len(values) > 1]
    blocks = min((len(values) for values in measured), default=0)
    noise = max((stdev(values) for values in measured), default=math.nan)
    alpha = comparison.settings.alpha
    margin = math.expm1(reach(noise, blocks, alpha, 0.95))
    margin = margin if math.isnan(margin) else math.ceil(margin / _STEP) * _STEP
    found = reach(noise, blocks, alpha / max(len(measured), 1), 0.9)  # in Holm's worst case
    return NoiseReport(
        blocks,
        len(measured),
        noise,
        margin,
        math.expm1(math.log1p(margin) + found),
        sum(one.answer == "regression" for _, one in comparison.timed),
        data.control.drift,
    )


def reach(noise: float, blocks: int, alpha: float, power: float) -> float:
    """Return how far beyond a bound (a logarithm) the t test of some blocks sees a change with this power."""
    if blocks < 2:
        return math.nan
    return statistics.reach(blocks - 1, alpha, power) * noise / math.sqrt(blocks)
