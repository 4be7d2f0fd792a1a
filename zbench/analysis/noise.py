"""What the machine's own noise is: a paired comparison of a version with itself."""

import math
from dataclasses import dataclass

from zbench.analysis.compare import Comparison
from zbench.analysis.evidence import of_blocks

_STEP = 0.005


@dataclass(frozen=True, slots=True)
class NoiseReport:
    """Fractions. `noise` is the spread of one block's difference, the largest over configurations.

    margin: the smallest threshold at which A against A passes nineteen times in twenty.
    detectable: the smallest slowdown called at that margin with power 0.9. alarms: regressions called, which
    should be none. drift: of base itself from the first blocks to the last.
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
    data, alpha = comparison.paired, comparison.settings.alpha
    assert data is not None, "noise is read from a paired measurement"
    measured = [of_blocks(cells) for cells in data.blocks.values() if cells]
    measured = [one for one in measured if one.n_base > 1]
    noisiest = max(measured, key=lambda one: one.contrast.error * math.sqrt(one.n_base), default=None)
    noise = margin = detectable = math.nan
    if noisiest is not None:
        noise = noisiest.contrast.error * math.sqrt(noisiest.n_base)
        margin = math.ceil(math.expm1(noisiest.contrast.reach(alpha, 0.95)) / _STEP) * _STEP
        beyond = noisiest.contrast.reach(alpha / len(measured), 0.9)  # in Holm's worst case
        detectable = math.expm1(math.log1p(margin) + beyond)
    return NoiseReport(
        min((one.n_base for one in measured), default=0),
        len(measured),
        noise,
        margin,
        detectable,
        sum(one.answer == "regression" for _, one in comparison.timed),
        math.nan if data.drift is None else data.drift,
    )
