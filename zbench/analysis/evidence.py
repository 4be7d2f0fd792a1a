"""The evidence of a comparison of two versions, pairs measured in turns or two stored runs: a contrast of a
table of log times. Pure.

Claims rest on Student's t. Without a difference those of alike processes are symmetric, whatever their
distribution is, and for such values t errs on the safe side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri, stdtrit

from zbench.analysis.cells import Cell
from zbench.analysis.ratios import Contrast, fitted

Sides = tuple[Sequence[float], Sequence[float]]
"""Logarithms of base and of head."""

RESIDUAL = math.log1p(0.02) / float(ndtri(0.99)) / math.sqrt(2)
"""Error of the machine's yardstick, the standard deviation of a run's logarithm: one pair of runs in 100
seems more than 2 % slower.
"""

_SURE = 1e6  # degrees of freedom of an error that is known


@dataclass(frozen=True, slots=True)
class Evidence:
    """What samples of one configuration show. contrast: head against base; positive is slower.

    n_base, n_head: processes; where they were measured paired, both are the number of blocks. floor: the part
    of the error that no number of processes reduces.
    """

    contrast: Contrast
    n_base: int
    n_head: int
    paired: bool
    floor: float = 0.0


def of_blocks(cells: Sequence[Cell]) -> Evidence:
    """Return the evidence of a paired measurement's cells (`zbench.analysis.paired.block_cells`).

    Student's t of the differences of pairs: two a block, so one degree of freedom less than that.
    """
    blocks = len({cell.round for cell in cells})
    return Evidence(fitted(cells).contrast({"head": 1.0, "base": -1.0}), blocks, blocks, paired=True)


def of_runs(base: Sequence[float], head: Sequence[float], shift: float = RESIDUAL) -> Evidence:
    """Return the evidence of two runs made at two times, from the logarithms of their repeats.

    shift: the standard deviation of what lies between runs, which no number of repeats can show. It is added
    to the error as known, so the degrees of freedom are Satterthwaite's with a term that has none.
    """
    cells = [
        Cell(side, str(number), "", (np.array([log]),))
        for side, logs in (("base", base), ("head", head))
        for number, log in enumerate(logs)
    ]
    seen = fitted(cells).contrast({"head": 1.0, "base": -1.0})
    floor = math.sqrt(2) * shift
    error = math.hypot(seen.error, floor)
    degrees = min(seen.degrees * (error / seen.error) ** 4, _SURE) if floor else seen.degrees
    return Evidence(replace(seen, error=error, degrees=degrees), len(base), len(head), False, floor)


def over_part(times: Sides, part: Sides) -> Evidence:
    """Return two stored runs' times over a part of the yardstick, by the share of it that they may follow."""
    share = share_followed(times, part)
    base, head = ([t - share * p for t, p in zip(*run, strict=True)] for run in zip(times, part, strict=True))
    return of_runs(base, head)


def share_followed(step_logs: Sides, part: Sides) -> float:
    """Return which share of a yardstick's change the times of two runs follow at most: 0 to 1, at 95 %.

    step_logs, part: base and head, a logarithm for each repeat. The bound is that of the slope of least
    squares of the repeats about the means of their runs. Where the runs' means of the part lie farther apart
    than these repeats do, something changed between the runs that no repeat shows. Then all may count: 1.
    """
    times, paces = (
        np.concatenate([np.subtract(side, np.mean(side)) for side in both]) for both in (step_logs, part)
    )
    if abs(np.mean(part[1]) - np.mean(part[0])) >= np.ptp(paces):
        return 1.0
    squares = float(paces @ paces)
    degrees = len(paces) - 3
    slope = float(times @ paces) / squares
    error = math.sqrt(float(np.square(times - slope * paces).sum()) / degrees / squares)
    return min(1.0, max(0.0, slope - error * float(stdtrit(degrees, 0.05))))
