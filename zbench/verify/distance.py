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
_SMALLEST = 2.0**-149


@dataclass(frozen=True, slots=True)
class Spread:
    """How far float32 tensors are from a reference's: the largest differences, and L2 over all.

    not_finite: a tensor that holds a value that is not finite; the differences are then None. farthest: the
    tensor with the largest L2 difference for its size.
    """

    max_abs: float | None
    max_ulp: int | None
    distance: float
    farthest: str
    not_finite: str | None


def compare(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], names: Sequence[str]) -> Spread:
    """Return the differences over `names`, each a pair of float32 tensors of one shape."""
    bad = next((name for name in names if not bool(torch.isfinite(mine[name]).all())), None)
    largest, ulps, squares = 0.0, 0, dict[str, float]()
    for name in names:
        if mine[name].shape != theirs[name].shape:
            raise ValueError(
                f"{name}: expected shape {tuple(theirs[name].shape)}, got {tuple(mine[name].shape)}"
            )
        if mine[name].numel() == 0:
            continue
        difference = (mine[name].double() - theirs[name].double()).abs()
        largest = max(largest, float(difference.max()))
        ulps = max(ulps, int((_ordered(mine[name]) - _ordered(theirs[name])).abs().max()))
        squares[name] = float(difference.square().mean())
    total = math.fsum(square * mine[name].numel() for name, square in squares.items())
    farthest = max(squares, key=lambda name: squares[name])
    if bad is not None:
        return Spread(None, None, math.inf, farthest, bad)
    return Spread(largest, ulps, math.sqrt(total), farthest, None)


def _ordered(values: Tensor) -> Tensor:
    """Return int64 numbers of which neighbours are neighbouring float32 values; both zeros are 0."""
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@dataclass(frozen=True, slots=True)
class Errors:
    """Error ratios, overall and of each tensor: distance from the truth over the reference's own (see
    `verdict`)."""

    overall: float
    each: dict[str, float]


def errors_of(
    mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], truth: Mapping[str, Tensor]
) -> Errors:
    """Return the error ratios of `mine`, with `theirs` as the yardstick, over all tensors of `truth`."""
    sizes = {name: exact.numel() for name, exact in truth.items() if exact.numel()}
    ours = {name: _square_distance(mine[name], truth[name]) for name in sizes}
    yard = {name: _square_distance(theirs[name], truth[name]) for name in sizes}
    floors = {name: _floor(truth[name]) for name in sizes}
    typical = statistics.median(yard[name] / size for name, size in sizes.items())
    each = {}
    for name, size in sizes.items():
        pooled = (yard[name] + _POOLED_ELEMENTS * typical) * size / (size + _POOLED_ELEMENTS)
        each[name] = math.sqrt(ours[name] / max(pooled, floors[name]))
    overall = math.sqrt(math.fsum(ours.values()) / max(math.fsum(yard.values()), math.fsum(floors.values())))
    return Errors(overall, each)


def _square_distance(values: Tensor, truth: Tensor) -> float:
    return float((values.double() - truth).square().sum())


def _floor(truth: Tensor) -> float:
    """Return the squared distance that rounding these values to float32 can make."""
    return float((truth * UNIT_ROUNDOFF).square().sum()) + truth.numel() * _SMALLEST**2
