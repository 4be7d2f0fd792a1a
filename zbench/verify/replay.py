"""The update, replayed: what an engine's Adam did in one step, held against the same arithmetic in float64.

From a rank's part of master weights and moments before and after a step follows the gradient that it used,
g = (m' - beta1 m) / (1 - beta1), and from that the second moments and the parameters that Adam makes of it.
What remains is rounding, or a fault. Rounding is known element by element (`worst` is in its units), and it
is incoherent, so what many elements have in common is seen far below it: `gram` holds the inner products of
what remains with what a fault would look like (`DIRECTIONS`), each element weighted by its rounding. Products
of parameters, ranks and steps can be added up, and any coefficient follows from them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zbench.verify.distance import SMALLEST, TINY, UNIT_ROUNDOFF

LENGTH, DECAY, EPS, EPS_INSIDE = range(1, 5)
"""Rows of `Remainder.gram` after the remainder itself: the update, the decay per unit of `weight_decay`, eps
per unit of eps, and eps inside the root."""

State = dict[str, Tensor]
"""`param`, `exp_avg` and, where they are kept, `exp_avg_sq` and `max_exp_avg_sq` of a run of elements."""
Products = NDArray[np.float64]  # in numpy's memory: it is no tensor memory of the trial's
Parts = dict[str, State]
"""A rank's part by `NAME@PLACE`, the place being anything that tells the parts of one parameter apart."""

KINDS = ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_CHUNK = 1 << 17
_UNIT, _BFLOAT16 = UNIT_ROUNDOFF, 2.0**-8


@dataclass(frozen=True, slots=True)
class Adam:
    """Hyperparameters of one parameter's updates. group: the pattern that gives them, if one does."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    bias_correction: bool
    amsgrad: bool
    decoupled: bool
    group: str | None = None

    def corrections(self, count: int) -> tuple[float, float]:
        """Return the bias corrections 1 - beta^count of both moments."""
        if not self.bias_correction:
            return 1.0, 1.0
        return 1 - self.beta1**count, 1 - self.beta2**count

    def lengths_in_float32(self, count: int) -> tuple[float, ...]:
        """Return by what share an update is longer where bias corrections are taken in float32.

        As a power, and as a product that is carried from step to step: what DeepSpeed's CPU Adam does.
        """
        if not self.bias_correction:
            return (0.0,)
        exact, betas = self.corrections(count), np.array([self.beta1, self.beta2], np.float32)
        product = np.multiply.reduce(np.tile(betas, (count, 1)), axis=0, dtype=np.float32)
        ways = [1 - np.power(betas, np.float32(count)), np.float32(1) - product]
        return tuple(float(exact[0] / way[0] * (way[1] / exact[1]) ** 0.5 - 1) for way in ways)

    @property
    def beta2_in_float32(self) -> float:
        """Return by what share 1 - beta2 is larger where beta2 is rounded to float32."""
        return (self.beta2 - float(np.float32(self.beta2))) / (1 - self.beta2)

    @property
    def decay_in_float32(self) -> float:
        """Return how much larger `weight_decay` is where 1 - lr x weight_decay is rounded to float32."""
        return (1 - float(np.float32(1 - self.lr * self.weight_decay))) / self.lr - self.weight_decay


@dataclass(slots=True, eq=False)
class Remainder:
    """What remained of one parameter's update on one rank in one step.

    count: the parameter's updates so far, this one included. gram [5, 5], moments [2, 2] float64: inner
    products of what remains (first) and `DIRECTIONS`; of second moments: the direction is another beta2, per
    unit of 1 - beta2. worst, worst_moment: the largest remainder in units of its rounding. alike: how many
    elements on average share one value, and so perhaps one rounding error.
    """

    parameter: str
    rank: int
    step: int
    count: int
    elements: int
    gram: Products = field(default_factory=lambda: np.zeros((5, 5)))
    moments: Products = field(default_factory=lambda: np.zeros((2, 2)))
    worst: float = 0.0
    worst_moment: float = 0.0
    alike: float = 1.0

    def add(self, old: State, new: State, adam: Adam, rebuilt: bool) -> None:
        """Add a chunk's part."""
        coarse = 0.0 if new["exp_avg"].dtype in (torch.float32, torch.float64) else _BFLOAT16
        mean, square = new["exp_avg"].double(), new["exp_avg_sq"].double()
        gradient = _gradient(old, new, adam)
        if not rebuilt:
            self._add_moments(old, new, gradient, adam, coarse)
        largest = new["max_exp_avg_sq"].double() if "max_exp_avg_sq" in new else square
        start, end = old["param"].double(), new["param"].double()
        first, second = adam.corrections(self.count)

        def update_by(denominator: Tensor) -> Tensor:
            return torch.where(mean == 0, 0.0, mean * (-adam.lr / first) / denominator)

        denominator = (largest / second).sqrt() + adam.eps
        update = update_by(denominator)
        decay = -adam.lr * start
        rest = end - start - update - (adam.weight_decay * decay if adam.decoupled else 0.0)
        noise = _UNIT * (start.abs() + end.abs() + 4 * update.abs()) + 2 * coarse * update.abs() + TINY
        noise += torch.where(mean == 0, 0.0, (1 + adam.lr / first) * SMALLEST / denominator)  # if subnormal
        eps = torch.where(mean == 0, 0.0, -update * adam.eps / denominator)
        inside = update_by((largest / second + adam.eps).sqrt()) - update
        rows = torch.stack([rest, update, decay, eps, inside]) / noise
        self.gram += (rows @ rows.T).numpy()
        corrected = rows[LENGTH] + rows[EPS]  # what the second moments' bias correction acts on
        left = rows[0] - _healthy_part(rows[0], corrected, adam.lengths_in_float32(self.count)) * corrected
        if adam.decoupled:
            left = left - _healthy_part(left, rows[DECAY], (adam.decay_in_float32,)) * rows[DECAY]
        self.worst = max(self.worst, float(left.abs().max()))

    def _add_moments(self, old: State, new: State, gradient: Tensor, adam: Adam, coarse: float) -> None:
        before, square = _kept(old, new, "exp_avg_sq"), new["exp_avg_sq"].double()
        rate, size = 1 - adam.beta2, new["exp_avg"].double().abs() + _kept(old, new, "exp_avg").abs()
        given = gradient.square() * rate
        rest = square - adam.beta2 * before - given
        unsure = (4 * _UNIT + coarse) * size / (1 - adam.beta1)  # of the gradient
        noise = (3 * _UNIT + coarse) * (square + before) + TINY
        noise += rate * unsure * (2 * gradient.abs() + unsure)
        rows = torch.stack([rest, given - rate * before]) / noise
        self.moments += (rows @ rows.T).numpy()
        rounded = rows[1] * adam.beta2_in_float32  # of engines that round beta2 first, and 1 - beta2 with it
        left = rows[0] - rows[0].clamp(rounded.clamp(max=0), rounded.clamp(min=0))
        self.worst_moment = max(self.worst_moment, float(left.abs().max()))


def replay(
    before: Parts, after: Parts, adams: Mapping[str, Adam], counts: Mapping[str, int], *, rank: int, step: int
) -> Iterator[Remainder]:
    """Yield what remained of each part that has moments; rebuilds its second moments where they are not kept.

    Rebuilt ones are put into `after`; after the second step there is nothing to rebuild them from. `counts`:
    updates of each parameter so far, 0 where it has had no gradient yet.
    """
    for key, new in after.items():
        name = key.rpartition("@")[0]
        old, count = before.get(key, {}), counts.get(name, 0)
        unmoved = count == 0 or "exp_avg" not in new or not new["param"].numel()
        if name not in adams or key not in before or unmoved:
            continue
        rebuilt = "exp_avg_sq" not in new
        if rebuilt and count > 1 and "exp_avg_sq" not in old:
            continue
        adam = adams[name]
        if rebuilt:
            given = _gradient(old, new, adam).square_().mul_(1 - adam.beta2)
            new["exp_avg_sq"] = given.add_(_kept(old, new, "exp_avg_sq"), alpha=adam.beta2)
            if adam.amsgrad:
                new["max_exp_avg_sq"] = _kept(old, new, "max_exp_avg_sq").maximum(new["exp_avg_sq"])
        remainder = Remainder(name, rank, step, count, new["param"].numel())
        for first in range(0, new["param"].numel(), _CHUNK):
            cut = slice(first, first + _CHUNK)
            was, now = ({kind: v[cut] for kind, v in state.items()} for state in (old, new))
            remainder.add(was, now, adam, rebuilt)
        moved = new["param"][:_CHUNK].double() - old["param"][:_CHUNK].double()
        remainder.alike = moved.numel() / torch.unique(moved).numel()
        yield remainder


def _kept(old: State, new: State, kind: str) -> Tensor:
    """Return a moment before the step in float64: zeros where it did not exist."""
    return old[kind].double() if kind in old else torch.zeros_like(new["param"], dtype=torch.float64)


def _gradient(old: State, new: State, adam: Adam) -> Tensor:
    """Return the gradient that moved the first moments, in float64."""
    return (new["exp_avg"].double() - adam.beta1 * _kept(old, new, "exp_avg")) / (1 - adam.beta1)


def _healthy_part(rest: Tensor, direction: Tensor, ways: tuple[float, ...]) -> float:
    """Return how much of a direction the remainder holds, as far as float32's ways to round explain it."""
    own = float(direction @ direction)
    return within(float(rest @ direction) / own, ways) if own > 0 else 0.0


def within(share: float, ways: tuple[float, ...]) -> float:
    """Return the nearest value between the least and the largest of 0 and `ways`."""
    return min(max(share, min(0.0, *ways)), max(0.0, *ways))
