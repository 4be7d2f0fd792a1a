"""Distances between sets of named tensors: absolute, in units in the last place, and against a float64
truth."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

UNIT_ROUNDOFF = 2.0**-24
_POOLED_ELEMENTS = 64
_SINGLE = 2
"""How many single elements decide nothing: one with a gradient of rounding noise moves either way."""
_PIECE = 1 << 16
SMALLEST, TINY = 2.0**-149, 2.0**-126
LEAST_SHARE = 1e-4
"""The size from which on a difference can be a fault, as a share of its term."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far float32 tensors are from a reference's: the largest differences, and L2 over all.

    not_finite: a tensor that holds a value that is not finite; the differences are then None. farthest: the
    tensor with the largest L2 difference for its size.
    """

    max_abs: float | None
    max_ulp: int | None
    distance: float
    farthest: str
    not_finite: str | None


def compare(
    values: Mapping[str, Tensor], reference: Mapping[str, Tensor], names: Sequence[str]
) -> Difference:
    """Return the differences over `names`, each a pair of float32 tensors of one shape."""
    bad = next((name for name in names if not bool(torch.isfinite(values[name]).all())), None)
    largest = 0.0
    ulps = 0
    squares = dict[str, float]()
    for name in names:
        if values[name].shape != reference[name].shape:
            raise ValueError(
                f"{name}: expected shape {tuple(reference[name].shape)}, got {tuple(values[name].shape)}"
            )
        if values[name].numel() == 0:
            continue
        squares[name] = 0.0
        for ours, theirs in _pieces(values[name], reference[name]):
            difference = (ours.double() - theirs.double()).abs()
            largest = max(largest, float(difference.max()))
            ulps = max(ulps, int((_ordered(ours) - _ordered(theirs)).abs().max()))
            squares[name] += float(difference.square().sum())
    total = math.fsum(squares.values())
    farthest = max(squares, key=lambda name: squares[name] / values[name].numel())
    if bad is not None:
        return Difference(None, None, math.inf, farthest, bad)
    return Difference(largest, ulps, math.sqrt(total), farthest, None)


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the elements of tensors of one shape in pieces, small enough for a core's cache in float64."""
    return zip(*(torch.split(tensor.reshape(-1), _PIECE) for tensor in tensors), strict=True)


def _ordered(values: Tensor) -> Tensor:
    """Return int64 numbers of which neighbours are neighbouring float32 values; both zeros are 0."""
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(1 << 31) - bits, bits)


@dataclass(frozen=True, slots=True)
class Errors:
    """Error ratios: distance from the truth over the reference's own. `each` has one for every tensor."""

    overall: float
    each: dict[str, float]

    @property
    def typical(self) -> float:
        """The median over tensors: rounding noise that has spread everywhere, or a fault that is
        everywhere."""
        return statistics.median(self.each.values())

    def local(self, name: str) -> float:
        """How far one tensor's ratio stands out from the typical one."""
        return self.each[name] / max(1.0, self.typical)

    @property
    def ratio(self) -> float:
        """The largest of the three; what exceeds 1 counts a third.

        One honest run's noise is one draw from a wide distribution. When rounding noise moves an element
        without a gradient to speak of, every other parameter feels it some steps later. Honest runs of a GPT
        in float32 differ up to sevenfold in these figures (of two compared, one in forty more than fourfold).
        """
        largest = max(self.overall, self.typical, *(self.local(name) for name in self.each))
        return min(largest, 1 + (largest - 1) / 3)


@dataclass(frozen=True, slots=True)
class Healthy:
    """Which errors are healthy, however lucky the yardstick is.

    sizes: the root mean square that each tensor's elements have, or moved by; 1 where it is not given.
    anywhere: the share of it by which every element may be off. counts_from: the share of it that counts, of
    each tensor, beside `roundings` roundings of all elements alike. A smaller error of a tensor has a ratio
    of 1 at most.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    anywhere: float = 0.0
    counts_from: Mapping[str, float] = field(default_factory=dict)
    roundings: int = 0

    def size(self, name: str) -> float:
        """Return the size of a tensor's elements."""
        return self.sizes.get(name, 1.0)

    def least(self, name: str) -> float:
        """Return the absolute error of a tensor's elements that counts."""
        return self.counts_from.get(name, 0.0) * self.size(name)


def errors_of(
    values: Mapping[str, Tensor],
    yardstick: Mapping[str, Tensor],
    truth: Mapping[str, Tensor],
    gradient_sizes: Mapping[str, Tensor] | None = None,
    healthy: Healthy = Healthy(),
) -> Errors:
    """Return the error ratios of `values` over all tensors of `truth`: their errors over the yardstick's.

    gradient_sizes: the weight of an element's error is the size of its gradient relative to its tensor. Adam
    moves every element by about the learning rate, so rounding noise moves an element with a small gradient
    furthest. An element without any gradient has the weight of a mean element.

    Overall: the mean absolute error over all elements. Of one tensor: the mean root of absolute errors,
    squared. Neither is L2, because errors under Adam have a long tail: an element whose gradient is almost
    zero moves by up to the learning rate on rounding noise alone. So an L2 distance is the luck of one
    element, and honest runs differ tenfold and more in it, while a fault moves many elements.

    The yardstick is the largest of three: the reference's own error of this tensor, the error that rounding
    the values to float32 makes, and the mean of the own errors and of the errors of `_POOLED_ELEMENTS`
    elements of the median tensor. The last is for tensors of few elements, whose own error is small by luck.
    """
    sizes = {name: exact.numel() for name, exact in truth.items() if exact.numel()}
    totals = []
    roots = dict[str, tuple[float, float, float]]()
    single = 0.0
    for name, size in sizes.items():
        least = max(SMALLEST, healthy.anywhere * healthy.size(name))
        sums = torch.zeros(2, 3, dtype=torch.float64)
        largest = 0.0
        weights = (gradient_sizes or {}).get(name, torch.zeros(()).expand(truth[name].shape))
        scale = math.sqrt(int(weights.count_nonzero())) / max(float(weights.norm()), SMALLEST)
        for value, other, exact, weight in _pieces(values[name], yardstick[name], truth[name], weights):
            floor = (exact * UNIT_ROUNDOFF).abs_().add_(least)
            errors = torch.stack([value.double() - exact, other.double() - exact, floor]).abs_()
            errors *= (weight * scale).masked_fill_(weight == 0, 1.0)
            sums += torch.stack([errors.sum(dim=1), errors.sqrt().sum(dim=1)])
            largest = max(largest, float(errors[0].max()))
        totals.append(sums[0])
        single = max(single, largest)
        root, yard, rounded = (sums[1] / size).tolist()
        roots[name] = _without_singles(root, math.sqrt(largest), size), yard, rounded
    ours, yard, rounded = torch.stack(totals).sum(dim=0).tolist()
    scales = {name: math.sqrt(healthy.size(name)) for name in sizes}
    median = statistics.median([yard / scales[n] for n, (_, yard, _) in roots.items() if scales[n]] or [0.0])
    each = dict[str, float]()
    for name, size in sizes.items():
        error_root, root, rounding = roots[name]
        pooled = (root * size + median * scales[name] * _POOLED_ELEMENTS) / (size + _POOLED_ELEMENTS)
        each[name] = (error_root / max(root, pooled, rounding)) ** 2
        if error_root**2 <= healthy.least(name) + healthy.roundings * rounding**2:
            each[name] = min(1.0, each[name])
    elements = sum(sizes.values())
    overall = _without_singles(ours / elements, single, elements) * elements / max(yard, rounded)
    counting = sum(healthy.least(name) * size for name, size in sizes.items())
    if ours <= counting + healthy.roundings * rounded:
        overall = min(1.0, overall)
    return Errors(overall, each)


def _without_singles(mean: float, largest: float, size: int) -> float:
    """Return the mean of errors without those of the few largest elements, where there are many."""
    few = min(_SINGLE, size // 8)
    return max(0.0, mean * size - few * largest) / (size - few)
