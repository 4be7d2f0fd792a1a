"""The plan of a paired measurement, and what its samples say; pure functions.

A block measures base and head twice each, as base-head-head-base or its mirror image. Within a block a linear
drift of the machine cancels exactly, and a slower one nearly. Which of the two orders a block gets is drawn
at random, so that under no difference its sign is a fair coin by design, whatever the machine does: the
sign-flip test is then exact without any assumption on the noise.
"""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Side = Literal["base", "head"]
Order = tuple[Side, Side, Side, Side]
BASE_FIRST: Order = ("base", "head", "head", "base")
HEAD_FIRST: Order = ("head", "base", "base", "head")
Blocks = Mapping[str, tuple[float, ...]]
"""Trial id -> the difference of logarithms of each block."""


def block_orders(blocks: int, seed: int) -> list[Order]:
    """Return the order of each block, drawn independently from `seed`."""
    coin = random.Random(seed)
    return [coin.choice((BASE_FIRST, HEAD_FIRST)) for _ in range(blocks)]


def block_difference(order: Order, seconds: Sequence[float]) -> float:
    """Return mean log(head) - mean log(base) of a block; `seconds` holds its process medians in order."""
    logs = [math.log(value) for value in seconds]
    head = [log for side, log in zip(order, logs, strict=True) if side == "head"]
    base = [log for side, log in zip(order, logs, strict=True) if side == "base"]
    return statistics.fmean(head) - statistics.fmean(base)


@dataclass(frozen=True, slots=True)
class Control:
    """Base against itself, before and after: what the machine does where nothing differs.

    `noise` is the standard deviation of one process's log step time, back to back; `drift` the log-ratio of
    after to before. Both are averages over the configurations.
    """

    noise: float
    drift: float


def control(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> Control:
    """Return the control of base samples (seconds) by trial, taken before and after; two or more of each."""
    spreads, drifts = [], []
    for name in before.keys() & after.keys():
        first, last = ([math.log(value) for value in side[name]] for side in (before, after))
        spreads += [statistics.variance(first), statistics.variance(last)]
        drifts.append(statistics.fmean(last) - statistics.fmean(first))
    if not spreads:
        return Control(math.nan, math.nan)
    return Control(math.sqrt(statistics.fmean(spreads)), statistics.fmean(drifts))
