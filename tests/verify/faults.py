"""Faults that a lot chose, at any step of a run of torch's own Adam."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.verify.honest import Run

KINDS = ("lost", "twice", "longer", "gradients", "one gradient", "one step's gradients", "clip")


@dataclass(frozen=True)
class Fault:
    """Of these steps, [first, last], and of these parameters; size: a share of the term."""

    kind: str
    first: int
    last: int
    names: frozenset[str]
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
        names = {lot.choice(large)} if kind == "one gradient" else set(sizes)
        return cls(kind, first, last, frozenset(names), lot.choice([-1, 1]) * lot.uniform(0.01, 0.5))


@dataclass
class Faulty(Run):
    """A run with a fault."""

    fault: Fault | None = None
    factor: float = 1.0

    @property
    def is_here(self) -> bool:
        return self.fault is not None and self.fault.first <= self.step <= self.fault.last

    def clip(self, gradients: dict[str, Tensor]) -> float:
        assert self.fault is not None
        kept = {name: value.clone() for name, value in gradients.items()}
        norm = super().clip(gradients)
        before, self.factor = self.factor, min(1.0, self.of.spec.gradient_clipping / max(norm, 1e-30))
        for name in self.fault.names if self.is_here else ():
            if "gradient" in self.fault.kind:
                gradients[name] = gradients[name] * (1 + self.fault.size)
            if self.fault.kind == "clip":
                gradients[name] = kept[name] * before
        return norm

    @torch.no_grad()
    def update(self, gradients: dict[str, Tensor]) -> None:
        assert self.fault is not None
        old = {name: value.clone() for name, value in self.masters.items()}
        super().update(gradients)
        more = {"lost": -1.0, "twice": 1.0, "longer": self.fault.size}.get(self.fault.kind)
        for name in self.fault.names if self.is_here and more is not None else ():
            self.masters[name] += more * (self.masters[name] - old[name])
