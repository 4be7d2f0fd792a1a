"""The evidence of a comparison of two versions: pairs measured in turns, or two stored runs. Pure."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

from scipy.special import ndtri

from zbench.analysis import statistics
from zbench.analysis.statistics import RatioEstimate, Sides

RESIDUAL = math.log1p(0.02) / float(ndtri(0.99)) / math.sqrt(2)
"""Error of the machine's yardstick, the standard deviation of a run's logarithm: one pair of runs in 100
seems more than 2 % slower.
"""


class Evidence(Protocol):
    """Samples of one comparison, as logarithms."""

    def estimate(self) -> RatioEstimate:
        """Return the mean log-ratio and its error."""

    def reversed(self) -> "Evidence":
        """Return the same evidence with base and head exchanged."""


@dataclass(frozen=True, slots=True)
class Paired:
    """One `log(head / base)` a pair or block, measured side by side; `replicates` as in `paired_estimate`."""

    differences: tuple[float, ...]
    replicates: tuple[float, ...] = ()

    def estimate(self) -> RatioEstimate:
        """Return the mean difference with its t error."""
        return statistics.paired_estimate(self.differences, self.replicates)

    def reversed(self) -> "Paired":
        """Return the differences with the other sign."""
        return Paired(tuple(-value for value in self.differences), self.replicates)


@dataclass(frozen=True, slots=True)
class Stored:
    """Logarithms of two runs made at two times. shift: the standard deviation of what lies between runs."""

    base: tuple[float, ...]
    head: tuple[float, ...]
    shift: float = RESIDUAL

    def estimate(self) -> RatioEstimate:
        """Return the difference of the means; its error has a part that no number of repeats reduces."""
        return statistics.unpaired_estimate(self.base, self.head, self.shift)

    def reversed(self) -> "Stored":
        """Return the comparison of base against head."""
        return replace(self, base=self.head, head=self.base)


def over_part(own: Sides, part: Sides) -> Stored:
    """Return two stored runs' times over a part of the yardstick, by the share of it that they may follow."""
    share = statistics.share_followed(own, part)
    sides = [tuple(t - share * p for t, p in zip(*logs, strict=True)) for logs in zip(own, part, strict=True)]
    return Stored(sides[0], sides[1])
