"""The gradient of the first step, by its slope: parameters equal the reference's there.

A parameter's gradient is regressed on that of the float64 run, and so is the reference's own. What rounding
adds is incoherent, so the slopes of both agree far more closely than their elements do, in bfloat16 too: a
factor, a dropped tensor, a missing micro-batch or rank stands out. Sketches (random sums, 64 a parameter) of
what each micro-batch of each rank adds say which of them is missing.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.record.record import Coefficient
from zbench.verify.diagnosis import CERTAIN, MOST_FAULTS, NEAR, WRONG_FROM, Finding, percent, times, where_of
from zbench.verify.replay import Adam

SLOPE_UP_TO = {"float32": 2e-4, "bfloat16": 2e-2, "float16": 5e-3}
"""Share by which a gradient may be larger than the reference's, by the model's dtype."""
REST_UP_TO = 8.0
"""How much further from its slope it may be than the reference's own."""
NORM_UP_TO = {"float32": 2e-4, "bfloat16": 2e-2, "float16": 4e-3}
SKETCH = 64
_SMALLEST = 2.0**-120


@dataclass(frozen=True, slots=True)
class Slope:
    """One parameter's gradient over the true one. rest: L2 of what is not on the slope, over the true one's.

    own, own_rest: the same of the reference's gradient. elements: of the gradient, zeros left out.
    """

    value: float
    rest: float
    own: float
    own_rest: float
    elements: int

    @property
    def error(self) -> float:
        """How much larger the gradient is than the reference's."""
        return self.value / self.own - 1

    def strays(self, dtype: str) -> bool:
        """Whether the gradient is beyond what rounding in the model's dtype explains."""
        limit = max(SLOPE_UP_TO[dtype], CERTAIN * self.uncertainty)
        rest_limit = max(REST_UP_TO * self.own_rest, SLOPE_UP_TO[dtype])
        return not (abs(self.error) <= limit and self.rest <= rest_limit)

    @property
    def uncertainty(self) -> float:
        """The standard error of the slope, were rounding errors independent."""
        return float(self.own_rest / max(abs(self.own), _SMALLEST) / max(1, self.elements) ** 0.5)

    @property
    def is_noise(self) -> bool:
        """Whether there is no gradient but rounding, as of a bias before a normalisation."""
        return self.own_rest > NEAR * abs(self.own)


def slopes(
    gradients: Mapping[str, Tensor], plain: Mapping[str, Tensor], true: Mapping[str, Tensor]
) -> dict[str, Slope]:
    """Return the slope of every gradient that the reference has; without `true`, on the reference's own."""
    result = {}
    for name, own in plain.items():
        truth = (true.get(name, own)).double().reshape(-1)
        square = float(truth @ truth)
        if square < _SMALLEST:
            continue
        each = [value.double().reshape(-1) for value in (gradients.get(name, torch.zeros_like(own)), own)]
        found = [float(value @ truth) / square for value in each]
        rests = [float((v - s * truth).norm()) / square**0.5 for v, s in zip(each, found, strict=True)]
        elements = int(torch.count_nonzero(truth))
        result[name] = Slope(found[0], rests[0], found[1], rests[1], elements)
    return result


def sketch(gradient: Tensor) -> Tensor:
    """Return [64] float64 sums of a gradient's elements, each row of 64 with a random sign; it is linear."""
    flat = gradient.detach().reshape(-1).double()
    rows = -(-flat.numel() // SKETCH)
    flat = torch.nn.functional.pad(flat, (0, rows * SKETCH - flat.numel()))
    signs = torch.randint(2, (rows, 1), generator=torch.Generator().manual_seed(rows)) * 2 - 1
    return (flat.view(rows, SKETCH) * signs).sum(dim=0)


def shares(gradients: Mapping[str, Tensor], contributions: Mapping[str, Tensor]) -> Tensor | None:
    """Return [W, B]: how much of what each backward of each rank adds is in the gradients; 1 where all is.

    contributions: by parameter, the sketches [W, B, 64] of a right gradient's parts. None where there are too
    many parts to tell apart.
    """
    columns, wanted = [], []
    for name, parts in contributions.items():
        size = float(parts.sum(dim=(0, 1)).norm())
        if size > 0 and name in gradients:
            columns.append(parts.reshape(-1, SKETCH).T.double() / size)
            wanted.append(sketch(gradients[name]) / size)
    if not columns or len(columns) * SKETCH < 2 * columns[0].shape[1]:
        return None
    solved: Tensor = torch.linalg.lstsq(torch.cat(columns), torch.cat(wanted)[:, None], driver="gelsd")[0]
    return solved.view(next(iter(contributions.values())).shape[:2])


def judge_gradient(
    of_each: Mapping[str, Slope], parts: Tensor | None, dtype: str, adams: Mapping[str, Adam]
) -> tuple[list[Finding], list[Coefficient]]:
    """Return the faults of the first step's gradient. parts [W, B]: `shares`."""
    if not of_each:
        return [], []
    pooled = statistics.median(one.value / one.own for one in of_each.values())
    spread = statistics.median(CERTAIN * one.uncertainty for one in of_each.values())
    coefficients = [Coefficient("gradient", pooled, spread)]
    bad = {name: one for name, one in of_each.items() if not one.is_noise and one.strays(dtype)}
    if not bad:
        return [], coefficients
    where = where_of({(name, 0) for name in bad}, {(name, 0) for name in of_each.keys() - bad}, adams)
    size = max(max(abs(one.error), one.rest - one.own_rest) for one in bad.values())
    missing = _missing(parts) if parts is not None and len(bad) == len(of_each) else None
    if missing is not None:
        return [Finding(1.0, missing)], coefficients
    if all(abs(one.value) < NEAR for one in bad.values()):
        return [Finding(1.0, f"no gradient ({where})")], coefficients
    if statistics.median(abs(one.error) < NEAR * one.rest for one in bad.values()):
        return [Finding(size, f"gradients other than the reference's ({where})")], coefficients
    factor = statistics.median(one.value / one.own for one in bad.values())
    ranks, backwards = parts.shape if parts is not None else (1, 1)
    return [Finding(size, factor_in_words(factor, where, ranks, backwards))], coefficients


def factor_in_words(factor: float, where: str, ranks: int, backwards: int) -> str:
    """Return what a factor on gradients reads like."""
    if abs(factor - 1) < WRONG_FROM:
        return f"gradients {percent(factor - 1)} too {'large' if factor > 1 else 'small'} ({where})"
    for count, what in ((ranks, "ranks"), (backwards, "micro-batches")):
        if count > 1 and abs(factor / count - 1) < NEAR / 3:
            return f"gradients {times(factor)}, as if summed over {count} {what}"
        if count > 1 and abs(factor * count - 1) < NEAR / 3:
            return f"gradients {times(factor)}, as if averaged over {count} {what} twice"
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
