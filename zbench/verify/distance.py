"""Distances between sets of named tensors: absolute, in units in the last place, and against a float64
truth."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

UNIT_ROUNDOFF = 2.0**-24
_POOLED_ELEMENTS = 64
SMALLEST, TINY = 2.0**-149, 2.0**-126


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
    largest, ulps, squares = 0.0, 0, dict[str, float]()
    for name in names:
        if values[name].shape != reference[name].shape:
            raise ValueError(
                f"{name}: expected shape {tuple(reference[name].shape)}, got {tuple(values[name].shape)}"
            )
        if values[name].numel() == 0:
            continue
        difference = (values[name].double() - reference[name].double()).abs()
        largest = max(largest, float(difference.max()))
        ulps = max(ulps, int((_ordered(values[name]) - _ordered(reference[name])).abs().max()))
        squares[name] = float(difference.square().mean())
    total = math.fsum(square * values[name].numel() for name, square in squares.items())
    farthest = max(squares, key=lambda name: squares[name])
    if bad is not None:
        return Difference(None, None, math.inf, farthest, bad)
    return Difference(largest, ulps, math.sqrt(total), farthest, None)


def _ordered(values: Tensor) -> Tensor:
    """Return int64 numbers of which neighbours are neighbouring float32 values; both zeros are 0."""
    magnitude = values.contiguous().view(torch.int32).to(torch.int64) & 0x7FFFFFFF
    return torch.where(values.signbit(), -magnitude, magnitude)


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

        One honest run's noise is one draw from a wide distribution: when an element without a gradient to
        speak of is moved by rounding noise, every other parameter feels it some steps later. Honest runs of a
        GPT in float32 differ up to sevenfold in these figures (of two compared, one in forty more than
        fourfold).
        """
        largest = max(self.overall, self.typical, *(self.local(name) for name in self.each))
        return min(largest, 1 + (largest - 1) / 3)


def errors_of(
    values: Mapping[str, Tensor],
    yardstick: Mapping[str, Tensor],
    truth: Mapping[str, Tensor],
    allowed: Mapping[str, float] | None = None,
) -> Errors:
    """Return the error ratios of `values` over all tensors of `truth`: their errors over the yardstick's.

    allowed: absolute error of a tensor's elements that is healthy whatever the yardstick's own.

    Overall: the mean absolute error over all elements. Of one tensor: the mean root of absolute errors,
    squared. Neither is L2, because errors under Adam have a long tail: an element whose gradient is almost
    zero moves by up to the learning rate on rounding noise alone, so an L2 distance is the luck of one
    element (honest runs differ tenfold and more in it), while a fault moves many.

    The yardstick is never smaller than rounding the values to float32 makes it, and a tensor of few elements
    shares that of `_POOLED_ELEMENTS` elements of the median tensor, since it cannot tell its own noise.
    """
    sizes = {name: exact.numel() for name, exact in truth.items() if exact.numel()}
    ours = {name: _sizes_of(values[name].double() - truth[name]) for name in sizes}
    yard = {name: _sizes_of(yardstick[name].double() - truth[name]) for name in sizes}
    least = {name: max(SMALLEST, (allowed or {}).get(name, 0.0)) for name in sizes}
    floor = {name: _sizes_of((truth[name] * UNIT_ROUNDOFF).abs() + least[name]) for name in sizes}
    sums = [math.fsum(of[name][0] for name in sizes) for of in (ours, yard, floor)]
    overall = sums[0] / max(sums[1], sums[2])
    median = statistics.median(root for _, root in yard.values())
    each = {}
    for name, size in sizes.items():
        pooled = (yard[name][1] * size + median * _POOLED_ELEMENTS) / (size + _POOLED_ELEMENTS)
        each[name] = (ours[name][1] / max(pooled, floor[name][1])) ** 2
    return Errors(overall, each)


def _sizes_of(errors: Tensor) -> tuple[float, float]:
    """Return the sum of absolute values and the mean of their roots."""
    absolute = errors.abs()
    return float(absolute.sum()), float(absolute.sqrt().mean())
