"""The plan of a paired measurement, and the cells that its samples fill; pure functions.

A block measures base and head twice each, as base-head-head-base or its mirror image. Within a block a linear
drift of the machine cancels exactly, and a slower one nearly. The order of a block is drawn at random, so
that without a difference its sign is a fair coin by design, whatever the machine does.

The first two samples of a block are one pair, the last two the other. A pair is a block of the table of log
times, because its samples share what the machine does. They share it wholly where their steps alternate, and
nearly where one follows the other. A drift then adds to one pair of a block what it takes from the other, so
it widens the error.
"""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from zbench.analysis.cells import Cell

Side = Literal["base", "head"]
Order = tuple[Side, Side, Side, Side]
BASE_FIRST: Order = ("base", "head", "head", "base")
HEAD_FIRST: Order = ("head", "base", "base", "head")
Blocks = Mapping[str, tuple[Cell, ...]]
"""Trial id -> the cells of all its blocks, in order of time."""


def block_orders(blocks: int, seed: int) -> list[Order]:
    """Return the order of each block, drawn independently from `seed`."""
    coin = random.Random(seed)
    return [coin.choice((BASE_FIRST, HEAD_FIRST)) for _ in range(blocks)]


def block_cells(number: int, order: Order, seconds: Sequence[float]) -> tuple[Cell, ...]:
    """Return the cells of a block; seconds: each process's mean step, in order."""
    return tuple(
        Cell(side, str(number), f"{number}.{i // 2}", (np.log([value]),))
        for i, (side, value) in enumerate(zip(order, seconds, strict=True))
    )


def block_differences(cells: Sequence[Cell]) -> tuple[float, ...]:
    """Return mean log(head) - mean log(base) of each block."""
    logs = {side: _by_block(cells, side) for side in ("base", "head")}
    return tuple(
        statistics.fmean(head) - statistics.fmean(base)
        for base, head in zip(logs["base"].values(), logs["head"].values(), strict=True)
    )


def base_at_either_end(cells: Sequence[Cell]) -> tuple[list[float], list[float]]:
    """Return the logarithms of base in the first quarter of the blocks, and in the last."""
    blocks = list(_by_block(cells, "base").values())
    quarter = math.ceil(len(blocks) / 4)
    return [log for one in blocks[:quarter] for log in one], [log for one in blocks[-quarter:] for log in one]


def _by_block(cells: Sequence[Cell], side: str) -> dict[str, list[float]]:
    logs: dict[str, list[float]] = {}
    for cell in cells:
        if cell.row == side:
            logs.setdefault(cell.round, []).append(float(cell.turns[0][0]))
    return logs
