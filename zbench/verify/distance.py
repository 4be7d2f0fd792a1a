"""Distances between sets of named tensors: absolute, in units in the last place, and against a float64
truth."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from zbench.verify.limits import POOLED_ELEMENTS, SINGLE_ELEMENTS, UNIT_ROUNDOFF

_PIECE = 1 << 16
SMALLEST, TINY = 2.0**-149, 2.0**-126


@dataclass(frozen=True, slots=True)
class Distances:
    """Sums over the elements of P parameters of a trial, the plain run and, if there is one, the float64 run.

    All fields [P] float64. elements: how many were added up. not_finite, plain_not_finite: how many of the
    trial's and of the plain run's values are not finite. squares: of trial - plain. own_squares: of plain -
    true. true_squares: of the true values. errors, own_errors: the absolute errors of the trial and of the
    plain run, each times the weight of its element. rounded: the errors that rounding the true values to
    float32 makes, or the least error that counts. roots, own_roots, rounded_roots: of the square roots of
    these errors. Maxima: largest, ulps: of trial - plain. largest_error: of the trial's weighted errors.
    """

    elements: Tensor
    not_finite: Tensor
    plain_not_finite: Tensor
    squares: Tensor
    own_squares: Tensor
    true_squares: Tensor
    errors: Tensor
    own_errors: Tensor
    rounded: Tensor
    roots: Tensor
    own_roots: Tensor
    rounded_roots: Tensor
    largest: Tensor
    ulps: Tensor
    largest_error: Tensor

    @classmethod
    def empty(cls, parameters: int) -> "Distances":
        """Return the sums over no elements."""
        return cls(*torch.zeros(len(fields(cls)), parameters, dtype=torch.float64))

    def table(self) -> Tensor:
        """Return [fields, P]: all fields."""
        return torch.stack([getattr(self, field.name) for field in fields(self)])

    @classmethod
    def reduced(cls, sums: Tensor, maxima: Tensor) -> "Distances":
        """Return the distances in the sum and in the maximum of several `table`s: of parts, or of ranks."""
        first = len(fields(cls)) - _MAXIMA
        return cls(*sums[:first], *maxima[first:])

    def of(self, rows: Sequence[int]) -> "Distances":
        """Return the sums of these parameters."""
        return Distances(*self.table()[:, list(rows)])

    def add_same(self, at: int, values: Tensor) -> None:
        """Add elements of parameter `at` that have the plain run's bits."""
        bad = len(values) - int(values.isfinite().sum())
        self.elements[at] += len(values)
        self.not_finite[at] += bad
        self.plain_not_finite[at] += bad

    def add(
        self,
        at: int,
        values: Tensor,
        plain: Tensor,
        true: Tensor | None = None,
        weights: Tensor | None = None,
        least: float = SMALLEST,
    ) -> None:
        """Add elements of parameter `at`. values, plain: float32, true: float64, flat and of one length.
        weights: see `relative_sizes`; 1 if None. least: the smallest error that `rounded` has.
        """
        if not len(values):
            return
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row["elements"][at] += len(values)
        row["not_finite"][at] += len(values) - int(values.isfinite().sum())
        row["plain_not_finite"][at] += len(plain) - int(plain.isfinite().sum())
        pieces = [torch.split(t, _PIECE) for t in (values, plain, true, weights) if t is not None]
        for value, other, *exact in zip(*pieces, strict=True):
            wide, reference = value.double(), other.double()
            difference = (wide - reference).abs_()
            row["largest"][at] = max(float(row["largest"][at]), float(difference.max()))
            row["squares"][at] += float(difference.square().sum())
            ulps = (_ordered(value.float()) - _ordered(other.float())).abs_().max()
            row["ulps"][at] = max(float(row["ulps"][at]), float(ulps))
            if true is None:
                continue
            truth = exact[0]
            floor = (truth * UNIT_ROUNDOFF).abs_().add_(least)
            errors = torch.stack([wide - truth, reference - truth, floor]).abs_()
            row["own_squares"][at] += float(errors[1].square().sum())
            row["true_squares"][at] += float(truth.square().sum())
            if weights is not None:
                errors *= exact[1]
            sums = torch.stack([errors.sum(dim=1), errors.sqrt().sum(dim=1)]).reshape(-1).tolist()
            for name, total in zip(_OF_ERRORS, sums, strict=True):
                row[name][at] += total
            row["largest_error"][at] = max(float(row["largest_error"][at]), float(errors[0].max()))


_MAXIMA = 3
_OF_ERRORS = ("errors", "own_errors", "rounded", "roots", "own_roots", "rounded_roots")


def relative_sizes(sizes: Tensor) -> Tensor:
    """Return how much the errors of a tensor's elements count: their sizes over the root mean square of those
    that are not 0.

    sizes: of the gradients of the elements. Adam moves every element by about the learning rate, so rounding
    noise moves an element with a small gradient furthest. An element without any gradient counts as a mean
    one.
    """
    scale = math.sqrt(int(sizes.count_nonzero())) / max(float(sizes.double().norm()), SMALLEST)
    return torch.where(sizes == 0, 1.0, sizes * scale)


def distances_of(
    values: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
    true: Mapping[str, Tensor] | None = None,
) -> Distances:
    """Return the distances of whole tensors of one shape each, in the order of `plain`.

    ValueError for another shape.
    """
    result = Distances.empty(len(plain))
    for at, (name, reference) in enumerate(plain.items()):
        if values[name].shape != reference.shape:
            expected, found = tuple(reference.shape), tuple(values[name].shape)
            raise ValueError(f"{name}: expected shape {expected}, got {found}")
        truth = None if true is None else true[name].reshape(-1)
        result.add(at, values[name].reshape(-1), reference.reshape(-1), truth)
    return result


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


def difference_of(distances: Distances, names: Sequence[str]) -> Difference:
    """Return the differences over all parameters, whose names are given in order."""
    bad = distances.not_finite > 0
    shares = distances.squares / distances.elements
    farthest = names[int(shares.masked_fill(distances.elements == 0, -1.0).nan_to_num(torch.inf).argmax())]
    if bool(bad.any()):
        return Difference(None, None, math.inf, farthest, names[int(bad.nonzero()[0])])
    total = math.fsum(distances.squares.tolist())
    return Difference(
        float(distances.largest.max()), int(distances.ulps.max()), math.sqrt(total), farthest, None
    )


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

    sizes: the root mean square that each tensor's elements have, or moved by; 1 if it is not given.
    counts_from: the share of it that counts, of each tensor, beside `roundings` roundings of all elements
    alike. A smaller error of a tensor has a ratio of 1 at most.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    counts_from: Mapping[str, float] = field(default_factory=dict)
    roundings: int = 0

    def size(self, name: str) -> float:
        """Return the size of a tensor's elements."""
        return self.sizes.get(name, 1.0)

    def least(self, name: str) -> float:
        """Return the absolute error of a tensor's elements that counts."""
        return self.counts_from.get(name, 0.0) * self.size(name)


def errors_of(distances: Distances, names: Sequence[str], healthy: Healthy = Healthy()) -> Errors:
    """Return the error ratios of all parameters, named in order: their errors over the yardstick's.

    Each error has the weight of its element (`relative_sizes`).
    Overall: the mean absolute error over all elements. Of one tensor: the mean root of absolute errors,
    squared. Neither is L2, because errors under Adam have a long tail: an element whose gradient is almost
    zero moves by up to the learning rate on rounding noise alone. So an L2 distance is the luck of one
    element, and honest runs differ tenfold and more in it, while a fault moves many elements.

    The yardstick is the largest of three: the reference's own error of this tensor, the error that rounding
    the values to float32 makes, and the mean of the own errors and of the errors of `POOLED_ELEMENTS`
    elements of the median tensor. The last is for tensors of few elements, whose own error is small by luck.
    """
    rows = {name: at for at, name in enumerate(names) if distances.elements[at]}
    sizes = {name: int(distances.elements[at]) for name, at in rows.items()}
    roots = dict[str, tuple[float, float, float]]()
    for name, at in rows.items():
        root, yard, rounded = (
            float(total[at]) / sizes[name]
            for total in (distances.roots, distances.own_roots, distances.rounded_roots)
        )
        largest = math.sqrt(float(distances.largest_error[at]))
        roots[name] = _without_singles(root, largest, sizes[name]), yard, rounded
    at_all = list(rows.values())
    ours, yard, rounded = (
        math.fsum(total[at_all].tolist())
        for total in (distances.errors, distances.own_errors, distances.rounded)
    )
    single = float(distances.largest_error[at_all].max())
    scales = {name: math.sqrt(healthy.size(name)) for name in sizes}
    median = statistics.median([yard / scales[n] for n, (_, yard, _) in roots.items() if scales[n]] or [0.0])
    each = dict[str, float]()
    for name, size in sizes.items():
        error_root, root, rounding = roots[name]
        pooled = (root * size + median * scales[name] * POOLED_ELEMENTS) / (size + POOLED_ELEMENTS)
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
    few = min(SINGLE_ELEMENTS, size // 8)
    return max(0.0, mean * size - few * largest) / (size - few)
