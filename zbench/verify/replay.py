"""The update, replayed: what an engine's Adam did in one step, held against the same arithmetic in float64.

From a rank's part of master weights and moments before and after a step follows the gradient that it used, g
= (m' - beta1 m) / (1 - beta1). From the gradient follow the second moments and the parameters that Adam makes
of it. What remains is rounding, or a fault. Rounding is known element by element (`worst` is in its units),
and it is incoherent, so what many elements have in common is seen far below it. `gram` holds the inner
products of what remains with what a fault would look like, each element weighted by its rounding. Products of
parameters, ranks and steps can be added up, and any coefficient follows from them.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zbench.verify.distance import SMALLEST, TINY
from zbench.verify.files import Elements
from zbench.verify.limits import LEAST_SHARE, ONE_ROUNDING, UNIT_ROUNDOFF, WORST_UP_TO

LENGTH, DECAY, EPS, EPS_INSIDE = range(1, 5)
"""Rows of `Residual.gram` after the residual itself: the update, the decay per unit of `weight_decay`, eps
per unit of eps, and eps inside the root."""

State = dict[str, Tensor]
"""`param`, `exp_avg` and, where they are kept, `exp_avg_sq` and `max_exp_avg_sq` of a run of elements."""
Products = NDArray[np.float64]  # in numpy's memory: it is no tensor memory of the trial's
Parts = Mapping[str, Mapping[str, Tensor]]
"""A rank's parts by `NAME@START`: the kinds of state of a run of elements, flat."""
StoredParts = Mapping[str, Mapping[str, Elements]]
"""The same, in memory or in a file."""

KINDS = ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_CHUNK = 1 << 15  # elements whose float64 intermediates stay in a core's cache
_COPIED = 1 << 18  # elements that are read from a file or a device at once
_SAMPLE = 1 << 17
_UNITS = np.eye(5)
CORRECTED = _UNITS[LENGTH] + _UNITS[EPS]
"""What the second moments' bias correction acts on."""
_DIGITS = 25  # half a unit in the last place of a float32 of [1/2, 1) is 2^-25
_BFLOAT16 = ONE_ROUNDING["bfloat16"]


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
        return self.lengths_by(count, self.carried_products(count)[-1])

    def carried_products(self, count: int) -> NDArray[np.float32]:
        """Return [count, 2]: the products of both betas, carried in float32 from each update to the next."""
        betas = np.array([self.beta1, self.beta2], np.float32)
        return np.multiply.accumulate(np.tile(betas, (count, 1)), axis=0, dtype=np.float32)

    def lengths_by(self, count: int, product: NDArray[np.float32]) -> tuple[float, ...]:
        """Return `lengths_in_float32` by the betas' carried products [2]."""
        if not self.bias_correction:
            return (0.0,)
        exact = self.corrections(count)
        betas = np.array([self.beta1, self.beta2], np.float32)
        ways = [1 - np.power(betas, np.float32(count)), np.float32(1) - product]
        return tuple(float(exact[0] / way[0] * (way[1] / exact[1]) ** 0.5 - 1) for way in ways)

    @property
    def beta2_in_float32(self) -> float:
        """Return by what share 1 - beta2 is larger where beta2 is rounded to float32."""
        return (self.beta2 - float(np.float32(self.beta2))) / (1 - self.beta2)

    def ends(self, start: Tensor, update: Tensor) -> list[Tensor]:
        """Return where an update may lead, as float64: exactly, and in float32 as engines round weight decay.

        p - lr x weight_decay x p, or p times its rounded factor, each rounded before the update or only with
        it. Where parameters or updates are alike, as the weights of norms are at first, all elements are
        rounded in one direction.
        """
        share = self.lr * self.weight_decay if self.decoupled else 0.0
        decayed = [start - share * start]
        if share != 0:
            decayed.append(start * float(np.float32(1 - share)))
            decayed += [value.float().double() for value in decayed]
        ends = [value + update for value in decayed]
        return [ends[0], *(value.float().double() for value in ends)]


@cache
def most_in_float32(adam: Adam, steps: int) -> float:
    """Return the largest share by which bias corrections in float32 make one of the first `steps` updates
    longer or shorter. It is 1.4e-5 for a beta2 of 0.999, and 1.3e-4 for 0.9999.
    """
    products = enumerate(adam.carried_products(steps), 1)
    return max(abs(share) for count, product in products for share in adam.lengths_by(count, product))


@dataclass(slots=True, eq=False)
class Residual:
    """What remained of one parameter's update on one rank in one step.

    count: the parameter's updates so far, this one included. gram [5, 5], moments [2, 2] float64: inner
    products of what remains (first) and `DIRECTIONS`; of second moments: the direction is another beta2, per
    unit of 1 - beta2. worst, worst_moment: the largest residual in units of its rounding, or of a
    share of the update too small for a fault. alike: how many
    elements on average share one value, and so perhaps one rounding error. coherent [3, 5]: the products with
    one rounding of all elements, in one direction, in that of their updates, or of the weights.
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
    coherent: Products = field(default_factory=lambda: np.zeros((3, 5)))

    def add(self, old: State, new: State, adam: Adam, rebuilt: bool, coarse: float) -> None:
        """Add a chunk's part, given as float64 copies, which are overwritten.

        rebuilt: `new` has second moments that nobody kept. coarse: unit roundoff of the engine's moments, if
        they are not float32.
        """
        if not rebuilt:
            self._add_moments(old, new, adam, coarse)
        mean = new["exp_avg"]
        largest = new.get("max_exp_avg_sq", new["exp_avg_sq"])
        start, end = old["param"], new["param"]
        first, second = adam.corrections(self.count)
        longest = mean * (-adam.lr / first)
        square = largest / second
        still = mean == 0
        denominator = square.sqrt().add_(adam.eps).masked_fill_(still, math.inf)
        update = longest / denominator
        inside = longest.div_(square.add_(adam.eps).sqrt_().masked_fill_(still, math.inf)).sub_(update)
        decay = start * -adam.lr
        lengths = adam.lengths_in_float32(self.count)
        rests = (end - rounded for rounded in adam.ends(start, update))
        rest = min(rests, key=lambda rest: _apart(rest, update, lengths))
        half = torch.ldexp(torch.ones_like(end), torch.frexp(end)[1] - _DIGITS)
        rounded = torch.stack([half, half * update.sign(), half * start.sign()])
        noise = start.abs_().add_(end.abs_()).mul_(UNIT_ROUNDOFF)
        noise.add_(update.abs(), alpha=4 * UNIT_ROUNDOFF + 2 * coarse).add_(TINY)
        noise.add_(denominator.reciprocal_(), alpha=(1 + adam.lr / first) * SMALLEST)  # of subnormal moments
        least = update.abs().mul_(LEAST_SHARE / WORST_UP_TO).div_(noise).clamp_(min=1)
        eps = denominator.mul_(update).mul_(-adam.eps)
        rows = torch.stack([rest, update, decay, eps, inside]).mul_(noise.reciprocal_())
        gram = (rows @ rows.T).numpy()
        self.gram += gram
        self.coherent += (rounded.mul_(noise) @ rows.T).abs_().numpy()
        weights = without(CORRECTED, _UNITS[0], gram, lengths)
        self.worst = max(self.worst, float((torch.from_numpy(weights) @ rows).abs_().div_(least).max()))

    def _add_moments(self, old: State, new: State, adam: Adam, coarse: float) -> None:
        before = _kept(old, new, "exp_avg_sq")
        square = new["exp_avg_sq"]
        gradient = _gradient(old, new, adam)
        rate = 1 - adam.beta2
        size = new["exp_avg"].abs().add_(_kept(old, new, "exp_avg").abs())
        share = gradient.square().mul_(rate)
        rest = square.sub(before, alpha=adam.beta2).sub_(share)
        unsure = size.mul_((4 * UNIT_ROUNDOFF + coarse) / (1 - adam.beta1))  # of the gradient
        noise = (square + before).mul_(3 * UNIT_ROUNDOFF + coarse).add_(TINY)
        noise.add_(gradient.abs_().mul_(2).add_(unsure).mul_(unsure), alpha=rate)
        rows = torch.stack([rest, share.sub_(before, alpha=rate)]).mul_(noise.reciprocal_())
        self.moments += (rows @ rows.T).numpy()
        rounded = rows[1] * adam.beta2_in_float32  # of engines that round beta2 first, and 1 - beta2 with it
        excess = rows[0] - rows[0].clamp(rounded.clamp(max=0), rounded.clamp(min=0))
        least = rows[1].abs_().mul_(LEAST_SHARE / WORST_UP_TO).clamp_(min=1)
        self.worst_moment = max(self.worst_moment, float(excess.abs_().div_(least).max()))


def updates_so_far(active: Tensor, skipped: Collection[int], step: int) -> list[int]:
    """Return [P]: the updates of each parameter up to a step; 0 if the step leaves the parameter alone.

    active [S, P] bool: which parameters have a gradient in each step. skipped: steps without an update.
    """
    taken = [at for at in range(step + 1) if at not in skipped]
    counts: list[int] = (active[taken].sum(dim=0) * active[step]).tolist()
    return counts


def replay(
    before: StoredParts,
    after: Parts,
    adams: Mapping[str, Adam],
    counts: Mapping[str, int],
    *,
    rank: int,
    step: int,
) -> Iterator[Residual]:
    """Yield the residual of each part that has moments.

    before: the parts before the step, in memory or in a file. counts: updates of each parameter so far, 0 if
    it has no gradient in this step. An engine may not show second moments. Then those of a parameter's first
    two updates are rebuilt from its first moments.
    """
    for key, new in after.items():
        name = key.rpartition("@")[0]
        old, count = before.get(key, {}), counts.get(name, 0)
        is_unmoved = count == 0 or "exp_avg" not in new or not len(new["param"])
        is_rebuilt = "exp_avg_sq" not in new
        if name not in adams or key not in before or is_unmoved or (is_rebuilt and count > 2):
            continue
        adam = adams[name]
        residual = Residual(name, rank, step, count, len(new["param"]))
        has_moved = False  # a model may choose what has a gradient: the reference has one here, the trial not
        coarse = 0.0 if new["exp_avg"].dtype in (torch.float32, torch.float64) else _BFLOAT16
        for first in range(0, len(new["param"]), _COPIED):
            cut = slice(first, first + _COPIED)
            was, now = ({kind: value[cut].cpu() for kind, value in state.items()} for state in (old, new))
            has_moved |= any(kind not in was or not was[kind].equal(now[kind]) for kind in now)
            if first == 0:
                residual.alike = _alike(was["param"][:_SAMPLE], now["param"][:_SAMPLE])
            for start in range(0, len(now["param"]), _CHUNK):
                chunk = slice(start, start + _CHUNK)
                before_chunk, after_chunk = (
                    {kind: v[chunk].to(torch.float64, copy=True) for kind, v in state.items()}
                    for state in (was, now)
                )
                if is_rebuilt:
                    _rebuild(before_chunk, after_chunk, adam, count)
                residual.add(before_chunk, after_chunk, adam, is_rebuilt, coarse)
        if has_moved:
            yield residual


def _rebuild(old: State, new: State, adam: Adam, count: int) -> None:
    """Put second moments into both states of a parameter's first or second update."""
    before = _kept(old, new, "exp_avg")
    square = (before / (1 - adam.beta1)).square_().mul_(1 - adam.beta2) if count == 2 else before.square()
    gained = _gradient(old, new, adam).square_().mul_(1 - adam.beta2)
    old["exp_avg_sq"] = square
    new["exp_avg_sq"] = gained.add_(square, alpha=adam.beta2)
    if adam.amsgrad:
        new["max_exp_avg_sq"] = square.maximum(new["exp_avg_sq"])


def _alike(start: Tensor, end: Tensor) -> float:
    """Return how many elements on average moved by the same value."""
    moved = np.sort((end.double() - start.double()).numpy())  # several times as fast as torch.unique
    return len(moved) / (1 + np.count_nonzero(moved[1:] != moved[:-1]))


def _kept(old: State, new: State, kind: str) -> Tensor:
    """Return a moment before the step in float64: zeros where it did not exist."""
    return old[kind].double() if kind in old else torch.zeros_like(new["param"], dtype=torch.float64)


def _gradient(old: State, new: State, adam: Adam) -> Tensor:
    """Return the gradient that moved the first moments, in float64."""
    return (new["exp_avg"].double() - adam.beta1 * _kept(old, new, "exp_avg")) / (1 - adam.beta1)


def without(direction: Products, row: Products, gram: Products, ways: tuple[float, ...]) -> Products:
    """Return a combination of rows without its share of another, as far as float32's rounding explains it."""
    square = float(direction @ gram @ direction)
    return row - within(float(row @ gram @ direction) / square, ways) * direction if square > 0 else row


def _apart(rest: Tensor, update: Tensor, lengths: tuple[float, ...]) -> float:
    """Return the norm of what is left of a residual without what rounded bias corrections explain of it."""
    square = float(update @ update)
    share = within(float(rest @ update) / square, lengths) if square > 0 else 0.0
    return float(rest.norm() if share == 0 else (rest - share * update).norm())


def within(share: float, ways: tuple[float, ...]) -> float:
    """Return the nearest value between the least and the largest of 0 and `ways`."""
    return min(max(share, min(0.0, *ways)), max(0.0, *ways))
