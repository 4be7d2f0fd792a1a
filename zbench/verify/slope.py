"""The gradient of the first step, by its slope: parameters equal the reference's there.

What a parameter's gradient adds to the reference's is regressed on the gradient of the float64 run. Rounding
is incoherent: the slope of many elements shows a factor far below the noise of each, in bfloat16 too. What is
not on the slope says how far to trust it. Sketches (random sums, 64 a parameter) of what each micro-batch of
each rank adds say which of them is missing.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.record.record import Coefficient
from zbench.verify.diagnosis import CERTAIN, MOST_FAULTS, NEAR, WRONG_FROM, Finding, percent, times, where_of
from zbench.verify.noise import UNRESOLVED_FROM
from zbench.verify.replay import Adam, within
from zbench.verify.sketches import SKETCH, sketch

ALONE_UP_TO = {"float32": 2e-4, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Share by which one parameter's gradient may be larger than the others', by the model's dtype."""
ALL_UP_TO = {"float32": 2e-4, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Share by which all may be larger than the reference's: a norm and a factor in bfloat16 clip all alike."""
REST_UP_TO = 8.0
"""How much further from its slope it may be than the reference's own."""
_SMALLEST = 2.0**-120


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


def slopes(
    gradients: Mapping[str, Tensor], plain: Mapping[str, Tensor], true: Mapping[str, Tensor]
) -> dict[str, Slope]:
    """Return the slope of every gradient that the reference resolves; without `true`, on its own."""
    result = {}
    for name, reference in plain.items():
        base, truth = reference.double().reshape(-1), true.get(name, reference).double().reshape(-1)
        square, along = float(truth @ truth), float(base @ truth)
        is_noise = float((base - truth).norm()) >= UNRESOLVED_FROM * square**0.5
        if square < _SMALLEST or along == 0 or is_noise:
            continue
        scale = along / square
        length = abs(along) / square**0.5
        added = (gradients[name].double().reshape(-1) if name in gradients else torch.zeros_like(base)) - base
        share = float(added @ truth) / square
        rest = added - share * truth
        result[name] = Slope(
            factor=1 + share / scale,
            error=float((rest * truth).norm()) / abs(along),
            rest=float(rest.norm()) / length,
            true_factor=1 / scale,
            own_rest=float((base - scale * truth).norm()) / length,
            elements=int(torch.count_nonzero(truth)),
        )
    return result


def shares(gradients: Mapping[str, Tensor], contributions: Mapping[str, Tensor]) -> Tensor | None:
    """Return [W, B]: how much of what each backward of each rank adds is in the gradients; 1 where all is.

    contributions: by parameter, the sketches [W, B, 64] of a right gradient's parts. None where there are too
    many parts to tell apart.
    """
    columns, targets = [], []
    for name, parts in contributions.items():
        size = float(parts.norm())
        if size > 0 and name in gradients:
            columns.append(parts.reshape(-1, SKETCH).T.double() / size)
            targets.append(sketch(gradients[name]) / size)
    if not columns or len(columns) * SKETCH < 2 * columns[0].shape[1]:
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
