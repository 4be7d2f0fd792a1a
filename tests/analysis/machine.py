"""A seeded machine that takes samples in place of a real one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zbench.analysis.paired import Side
from zbench.record.record import Record

from .synthetic import record, saved

STAGES = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Samples that are taken one after another, by a function."""

    take: Callable[[Side], Sequence[Record]]

    def take_in_turns(self, first: Side, second: Side) -> None:
        """Say that it cannot be done."""

    def remember(self, side: Side, sample: Sequence[Record]) -> None:
        """Need nothing of it."""


class Machine:
    """Takes samples whose steps drift upward all the time; head is slower by `factor` in stage 1.

    `spell` makes head that much slower only for its first block: a spell of load. `drift` is by how much each
    sample is slower than the one before.
    """

    def __init__(self, factor: float = 1.0, spell: float = 1.0, drift: float = 0.002, **head: Any) -> None:
        self.rng = np.random.default_rng(4)
        self.factor, self.spell, self.drift, self.head = factor, spell, drift, head
        self.taken: list[Side] = []

    def __call__(self, side: Side) -> list[Record]:
        self.taken.append(side)
        drift = (1 + self.drift) ** len(self.taken)
        slow = self.factor * (self.spell if len(self.taken) < 8 else 1.0)
        changes = self.head if side == "head" else {}
        seconds = [0.1 * drift * math.exp(self.rng.normal(0, 0.01)) for _ in STAGES]
        if side == "head":
            seconds[1] *= slow
        return [
            saved(record(step_s, axes={"zero_stage": stage}, **changes))
            for stage, step_s in zip(STAGES, seconds, strict=True)
        ]
