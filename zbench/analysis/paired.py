"""The plan of a paired measurement, and the analysis of its samples; pure functions.

A block measures base and head twice each, as base-head-head-base or its mirror image. Within a block a linear
drift of the machine cancels exactly, and a slower one nearly. Which of the two orders a block gets is drawn
at random, so that under no difference its sign is a fair coin by design, whatever the machine does: the
sign-flip test is then exact without any assumption on the noise.

The first two samples of a block are one pair, the last two the other. Where the steps of a pair alternate, a
drift cancels within each pair; the block still has each side begin once.
"""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Side = Literal["base", "head"]
Order = tuple[Side, Side, Side, Side]
SIDES: tuple[Side, Side] = ("base", "head")
BASE_FIRST: Order = ("base", "head", "head", "base")
HEAD_FIRST: Order = ("head", "base", "base", "head")
Blocks = Mapping[str, tuple[float, ...]]
"""Trial id -> the difference of logarithms of each block."""

_HARMLESS = math.log(1.25)
"""A machine whose speed moves by less than this from start to end is no problem: blocks cancel the drift."""


def block_orders(blocks: int, seed: int) -> list[Order]:
    """Return the order of each block, drawn independently from `seed`."""
    coin = random.Random(seed)
    return [coin.choice((BASE_FIRST, HEAD_FIRST)) for _ in range(blocks)]


def block_difference(order: Order, seconds: Sequence[float]) -> float:
    """Return mean log(head) - mean log(base) of a block; `seconds` has each process's mean step in order."""
    base, head = (_of(side, order, seconds) for side in SIDES)
    return statistics.fmean(head) - statistics.fmean(base)


def block_replicates(order: Order, seconds: Sequence[float]) -> tuple[float, float]:
    """Return log(second) - log(first) of base's two processes in a block, and of head's."""
    base, head = (_of(side, order, seconds) for side in SIDES)
    return base[1] - base[0], head[1] - head[0]


def replicates_in_turns(order: Order, seconds: Sequence[float]) -> tuple[float]:
    """Return the equivalent of `block_replicates` for a block whose two pairs were each taken in turns.

    A drift from pair to pair affects both samples of a pair alike, and so is no part of a block's error. The
    difference of the two pairs is; divided by sqrt 2 it has the variance of one replicate.
    """
    (base, again), (head, last) = (_of(side, order, seconds) for side in SIDES)
    return (((last - again) - (head - base)) / math.sqrt(2),)


def _of(side: Side, order: Order, seconds: Sequence[float]) -> list[float]:
    return [math.log(value) for of, value in zip(order, seconds, strict=True) if of == side]


@dataclass(frozen=True, slots=True)
class Control:
    """Base compared with itself, before and after the blocks: the machine's own noise and drift.

    `noise` is the standard deviation of one process's log step time, back to back; `drift` the log-ratio of
    after to before. Both are averages over the configurations. `degrees` are those of the noise.
    """

    noise: float
    drift: float
    degrees: int

    def moved(self, alpha: float) -> bool:
        """Say whether base against itself moved by more than its noise explains, and by more than 25 %."""
        if not abs(self.drift) > _HARMLESS:  # NaN where nothing was measured
            return False
        from scipy.special import stdtrit

        configurations = self.degrees / 2
        error = self.noise / math.sqrt(configurations)  # two means of two samples a configuration
        return abs(self.drift) > -float(stdtrit(self.degrees, alpha / 2)) * error


def control(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> Control:
    """Return the control of base samples (seconds) by trial, taken before and after; two or more of each."""
    spreads, drifts = [], []
    for name in before.keys() & after.keys():
        first, last = ([math.log(value) for value in side[name]] for side in (before, after))
        if min(len(first), len(last)) > 1:
            spreads += [statistics.variance(first), statistics.variance(last)]
            drifts.append(statistics.fmean(last) - statistics.fmean(first))
    if not spreads:
        return Control(math.nan, math.nan, len(spreads))
    return Control(math.sqrt(statistics.fmean(spreads)), statistics.fmean(drifts), len(spreads))
