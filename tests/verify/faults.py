"""Faults that a lot chose, at any step of a run of torch's own Adam."""

import random
from dataclasses import dataclass

from tests.verify.wrong import Wrong, late_coefficient, moves, times

KINDS = ("lost", "twice", "longer", "gradients", "one gradient", "one step's gradients", "clip")


@dataclass(frozen=True)
class Fault:
    """Of these steps, [first, last], and of the parameters of a pattern; size: a share of the term."""

    kind: str
    first: int
    last: int
    pattern: str
    size: float

    @classmethod
    def drawn(cls, kind: str, lot: random.Random, steps: int, sizes: dict[str, int]) -> "Fault":
        """Draw a fault of 1 % to 50 %: a step, parameters and a share."""
        first = lot.randrange(1, steps)
        last = (
            steps
            if kind in ("gradients", "one gradient", "clip")
            else first + 4
            if kind == "longer"
            else first
        )
        large = [name for name, size in sizes.items() if size >= 256]
        pattern = lot.choice(large) if kind == "one gradient" else "*"
        return cls(kind, first, last, pattern, lot.choice([-1, 1]) * lot.uniform(0.01, 0.5))

    @property
    def wrong(self) -> Wrong:
        """Return what it does to a step."""
        if self.kind in ("lost", "twice", "longer"):
            return Wrong(after=moves({"lost": 0.0, "twice": 2.0}.get(self.kind, 1 + self.size), self.pattern))
        return Wrong(
            gradients=late_coefficient if self.kind == "clip" else times(1 + self.size, self.pattern)
        )
