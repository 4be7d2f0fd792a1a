"""The gradient of the first step, by its slope: parameters equal the reference's there.

What a parameter's gradient adds to the reference's is regressed on the gradient of the float64 run. Rounding
is incoherent: the slope of many elements shows a factor far below the noise of each, in bfloat16 too. What is
not on the slope says how far to trust it. Sketches (random sums, 64 a parameter) of what each micro-batch of
each rank adds say which of them is missing.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from zbench.record.record import Coefficient
from zbench.verify.diagnosis import MOST_FAULTS, Finding, percent, times, where_of
from zbench.verify.limits import (
    ALL_UP_TO,
    ALONE_UP_TO,
    CERTAIN,
    NEAR,
    REST_UP_TO,
    UNRESOLVED_FROM,
    WRONG_FROM,
)
from zbench.verify.regression import Regression
from zbench.verify.replay import Adam, within
from zbench.verify.sums import CELLS

_SMALLEST = 2.0**-120
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Slope:
    """One parameter's gradient beside the reference's, by what both have along the true one.

    factor: how many times as large it is. error: the standard error of that. rest: what it adds off the
    slope (L2), over the gradient. true_factor: the true gradient's factor. own_rest: the reference's distance
    from the true one off the slope, in the same unit.
    """

    factor: float
    error: float
    rest: float
    true_factor: float
    own_rest: float
    elements: int

    @property
    def own_error(self) -> float:
        """The reference's whole distance from the true gradient, in the unit of `own_rest`."""
        return math.hypot(self.own_rest, self.true_factor - 1)


@dataclass(frozen=True, slots=True)
class GradientSums:
    """Sums over the elements of P gradients: of a trial, of the plain run, and of the float64 run (true).

    All fields [P] float64. count: elements whose true gradient is not 0. square: of true². along, total: of
    added x true and of added², where added = trial - plain. own_along, own_total: the same of plain - true.
    squares, cubes, fourths: of added² x true², added x true³ and true⁴.
    """

    count: Tensor
    square: Tensor
    along: Tensor
    total: Tensor
    own_along: Tensor
    own_total: Tensor
    squares: Tensor
    cubes: Tensor
    fourths: Tensor

    @classmethod
    def empty(cls, parameters: int) -> "GradientSums":
        """Return the sums over no elements."""
        return cls(*torch.zeros(len(fields(cls)), parameters, dtype=torch.float64))

    def table(self) -> Tensor:
        """Return [9, P]: all fields."""
        return torch.stack([getattr(self, field.name) for field in fields(self)])

    def add(self, at: int, gradient: Tensor, plain: Tensor, true: Tensor | None) -> None:
        """Add elements of parameter `at`, flat and of one length. true: None without a float64 run."""
        pieces = [torch.split(t, _PIECE) for t in (gradient, plain, true) if t is not None]
        for ours, base, *exact in zip(*pieces, strict=True):
            wide = base.double()
            truth = exact[0].double() if exact else wide
            added, own = ours.double() - wide, wide - truth
            square, product = truth.square(), added * truth
            sums = (
                int(truth.count_nonzero()), square.sum(), product.sum(), added @ added, own @ truth,
                own @ own, product @ product, product @ square, square @ square,
            )  # fmt: skip
            for field, total in zip(fields(self), sums, strict=True):
                getattr(self, field.name)[at] += total

    def slopes(self, names: Sequence[str]) -> dict[str, Slope]:
        """Return the slope of every gradient that the reference resolves, by name."""
        own = Regression(self.square, self.own_along, self.own_total)
        trial = Regression(self.square, self.along, self.total)
        scale = 1 + own.slope
        share = trial.slope
        length = scale.abs() * self.square.sqrt()
        spread = self.squares - 2 * share * self.cubes + share.square() * self.fourths
        columns = {
            "factor": 1 + share / scale,
            "error": spread.clamp(min=0.0).sqrt() / (scale.abs() * self.square),
            "rest": trial.across / length,
            "true_factor": 1 / scale,
            "own_rest": own.across / length,
        }
        resolved = (self.square >= _SMALLEST) & (scale != 0)
        resolved &= self.own_total.sqrt() < UNRESOLVED_FROM * self.square.sqrt()
        return {
            name: Slope(
                **{key: float(column[at]) for key, column in columns.items()}, elements=int(self.count[at])
            )
            for at, name in enumerate(names)
            if bool(resolved[at])
        }


def gradient_sums(
    gradients: Mapping[str, Tensor], plain: Mapping[str, Tensor], true: Mapping[str, Tensor]
) -> GradientSums:
    """Return the sums over whole gradients, in the order of `plain`; a missing gradient is 0."""
    result = GradientSums.empty(len(plain))
    for at, (name, reference) in enumerate(plain.items()):
        base = reference.reshape(-1)
        truth = true[name].reshape(-1) if name in true else None
        result.add(
            at, gradients[name].reshape(-1) if name in gradients else torch.zeros_like(base), base, truth
        )
    return result


def shares(gradients: Mapping[str, Tensor], contributions: Mapping[str, Tensor]) -> Tensor | None:
    """Return [W, B]: how much of what each backward of each rank adds is in the gradients; 1 if all is.

    gradients: the signed sums [128] of each. contributions: those [W, B, 128] of a right gradient's parts.
    None if there are too many parts to tell apart.
    """
    columns, targets = [], []
    for name, parts in contributions.items():
        size = float(parts.norm())
        if size > 0 and name in gradients:
            columns.append(parts.reshape(-1, CELLS).T.double() / size)
            targets.append(gradients[name] / size)
    if not columns or len(columns) * CELLS < 2 * columns[0].shape[1]:
        return None
    solved: Tensor = torch.linalg.lstsq(torch.cat(columns), torch.cat(targets)[:, None], driver="gelsd")[0]
    return solved.view(next(iter(contributions.values())).shape[:2])


def judge_gradient(
    of_each: Mapping[str, Slope],
    parts: Tensor | None,
    dtype: str,
    adams: Mapping[str, Adam],
    clipping_error: float,
    *,
    has_truth: bool = True,
) -> tuple[list[Finding], list[Coefficient]]:
    """Return the faults of the first step's gradient. parts [W, B]: `shares`. clipping_error: as a Reference
    has it. has_truth: whether there is a float64 run; without it nothing bounds errors off the slope.
    """
    if not of_each:
        return [], []
    limits = _Limits.of(list(of_each.values()), dtype, clipping_error)
    coefficients = [Coefficient("gradient", limits.common, CERTAIN * limits.coherent)]
    bad = {name: one for name, one in of_each.items() if limits.exceeded(one, has_truth)}
    if not bad:
        return [], coefficients
    where = where_of({(name, 0) for name in bad}, {(name, 0) for name in of_each.keys() - bad}, adams)
    size = max(max(abs(one.factor - 1), one.rest) for one in bad.values())
    missing = _missing(parts) if parts is not None and 2 * len(bad) > len(of_each) else None
    if missing is not None:
        return [Finding(1.0, missing)], coefficients
    if all(abs(one.factor) < NEAR for one in bad.values()):
        return [Finding(1.0, f"no gradient ({where})")], coefficients
    if statistics.median(abs(one.factor - 1) < NEAR * one.rest for one in bad.values()):
        return [Finding(size, f"gradients other than the reference's ({where})")], coefficients
    factor = statistics.median(one.factor for one in bad.values())
    ranks, backwards = parts.shape if parts is not None else (1, 1)
    return [Finding(size, factor_in_words(factor, where, ranks, backwards))], coefficients


@dataclass(frozen=True, slots=True)
class _Limits:
    """What rounding explains in one run.

    alone, whole: how far from 1 the factor of one parameter, and of all, may be. common: the factor that most
    parameters have. typical: how far elements are from their slope. coherent: what elements of a parameter
    have in common of that, as far as the reference's own rounding shows.
    """

    alone: float
    whole: float
    common: float
    typical: float
    coherent: float

    @classmethod
    def of(cls, all_slopes: Sequence[Slope], dtype: str, clipping_error: float) -> "_Limits":
        factors = [one.factor for one in all_slopes]
        middle = (statistics.median_low(factors), statistics.median_high(factors))
        typical = statistics.median(one.rest for one in all_slopes)
        own_rest = statistics.median(one.own_rest for one in all_slopes)
        own_error = statistics.median(abs(one.true_factor - 1) for one in all_slopes)
        coherent = own_error * typical / own_rest if own_rest > 0 else 0.0
        common = min(middle, key=lambda factor: abs(factor - 1))
        return cls(ALONE_UP_TO[dtype], common_limit(dtype, clipping_error), common, typical, coherent)

    def exceeded(self, one: Slope, has_truth: bool) -> bool:
        """Whether a gradient is beyond what rounding explains."""
        common = min(max(self.common - 1, -self.whole), self.whole)
        off = one.factor - 1 - within(one.factor - 1, (common, one.true_factor - 1))
        of_elements = max(self.typical / one.elements**0.5, one.own_error / one.elements)
        spread = CERTAIN * max(one.error, of_elements, self.coherent)
        is_off = abs(off) > self.alone + spread
        return is_off or (has_truth and one.rest > max(REST_UP_TO * one.own_rest, self.whole))


def common_limit(dtype: str, clipping_error: float) -> float:
    """Return how far from 1 a factor of all gradients may be: torch's own clipping may be that far off."""
    return ALL_UP_TO[dtype] + 2 * clipping_error


def factor_in_words(factor: float, where: str, ranks: int, backwards: int) -> str:
    """Return what a factor on gradients reads like."""
    if abs(factor - 1) < WRONG_FROM:
        return f"gradients {percent(factor - 1)} too {'large' if factor > 1 else 'small'} ({where})"
    for count, unit in ((ranks, "ranks"), (backwards, "micro-batches")):
        if abs(factor / count - 1) < NEAR / 3:
            return f"gradients {times(factor)}, as if summed over {count} {unit}"
        if abs(factor * count - 1) < NEAR / 3:
            return f"gradients {times(factor)}, as if averaged over {count} {unit} twice"
    return f"gradients {times(factor)} ({where})"


def _missing(parts: Tensor) -> str | None:
    """Return which ranks' or micro-batches' gradients are missing."""
    gone = parts.abs() < NEAR * float(parts.abs().max())
    if not bool(gone.any()) or bool(gone.all()):
        return None
    ranks, backwards = parts.shape
    places = [f"rank {rank}" for rank in range(ranks) if bool(gone[rank].all())]
    places += [f"micro-batch {k + 1} of {backwards}" for k in range(backwards) if bool(gone[:, k].all())]
    places = places or [f"micro-batch {k + 1} of rank {r}" for r, k in gone.nonzero().tolist()]
    return f"gradients without those of {', '.join(places[:MOST_FAULTS])}"
