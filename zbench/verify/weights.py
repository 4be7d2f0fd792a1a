"""The verdict on the weights that a training script saved.

They are compared with the base configuration's, which is run twice. If these two results differ, their
distance is the yardstick. If they are the same bits, the yardstick is the distance of a third run, to which
rounding errors are added, or of a fourth one with larger errors if the training jumps. The error ratio and
its thresholds are those of `verdict`, with the base run in the place of the truth. Nothing is decided if the
yardstick is a quarter of the way that the weights travelled, and no fault is named if the run with the larger
errors is.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zbench.record.record import Correctness
from zbench.verify.distance import difference_of, distances_of, errors_of
from zbench.verify.limits import EQUIVALENT_UP_TO, JUMPS_FROM, ROUGH_TIMES
from zbench.verify.trajectory import read_tensors, write_tensors
from zbench.verify.verdict import Judgement, name_of

_FORMAT = "weights-2"


@dataclass(frozen=True, slots=True)
class Base:
    """The base configuration's saved weights.

    yardstick: the weights of another run of it, or of a run with added rounding errors; None if all agree.
    rough: the weights of a run whose rounding errors are `ROUGH_TIMES` as large. way: the root mean square of
    the distances that weights travelled; None if unknown. is_repeatable: two runs ended with the same bits.
    """

    weights: Mapping[str, Tensor]
    yardstick: Mapping[str, Tensor] | None
    rough: Mapping[str, Tensor] | None = None
    way: float | None = None
    is_repeatable: bool = True


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of weights have the same names, dtypes, shapes and values."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def save_base(base: Base, path: Path) -> None:
    """Write a base to a safetensors file, whole or not at all."""
    runs = {"base": base.weights, "again": base.yardstick or {}, "rough": base.rough or {}}
    named = ((f"{run}/{name}", value) for run, weights in runs.items() for name, value in weights.items())
    tensors = {name: value.contiguous().clone() for name, value in named}
    facts = {"way": json.dumps(base.way), "is_repeatable": json.dumps(base.is_repeatable)}
    write_tensors(tensors, path, {"format": _FORMAT} | facts)


def load_base(path: Path) -> Base:
    """Read what `save_base` wrote; DamagedReferenceError where it is not that."""
    tensors, facts = read_tensors(path, _FORMAT)
    runs: dict[str, dict[str, Tensor]] = {"base": {}, "again": {}, "rough": {}}
    for key, tensor in tensors.items():
        run, _, name = key.partition("/")
        runs[run][name] = tensor
    way, is_repeatable = (json.loads(facts[fact]) for fact in ("way", "is_repeatable"))
    return Base(runs["base"], runs["again"] or None, runs["rough"] or None, way, is_repeatable)


def judge_weights(weights: Mapping[str, Tensor], base: Base) -> Judgement:
    """Return the verdict on the weights that a trial saved."""
    for name, value in sorted(base.weights.items()):
        if name not in weights or weights[name].shape != value.shape:
            mismatch = f"has another shape of {name}" if name in weights else f"lacks {name}"
            return _unchecked(f"not verified: the checkpoint {mismatch}, unlike the base's")
    names = [name for name in base.weights if base.weights[name].numel()]
    ours = {name: weights[name].float() for name in names}
    theirs = {name: base.weights[name].float() for name in names}
    if not all(bool(value.isfinite().all()) for value in theirs.values()):
        return _unchecked("not verified: the base configuration's weights are not finite")
    difference = difference_of(distances_of(ours, theirs), names)
    if difference.not_finite is not None:
        return Judgement(Correctness("wrong", worst_parameter=difference.not_finite))
    if difference.max_ulp == 0:
        return Judgement(Correctness("identical", 1.0 if base.yardstick else None, 0.0, 0))
    measured = (difference.max_abs, difference.max_ulp)
    if base.yardstick is None:
        why = (
            "not the base configuration's bits, and no run shows what rounding explains: let the command"
            " train with an optimizer of torch.optim"
        )
        return _unchecked(why, None, *measured, difference.farthest)
    truth = {name: value.double() for name, value in theirs.items()}
    errors = errors_of(distances_of(ours, _yardstick(base, truth), truth), names)
    shares = [_share_of_way(base, base.yardstick)]
    if errors.ratio > EQUIVALENT_UP_TO:
        shares.append(_share_of_way(base, base.rough))
    if (share := max(shares)) * EQUIVALENT_UP_TO >= 1:
        differ, remedy = (
            ("rounding moves the base configuration's result by", "train fewer steps")
            if base.is_repeatable
            else ("two runs of the base configuration differ by", "set a seed")
        )
        why = f"not verified: {differ} {share:.0%} of the way that its weights travelled: {remedy}"
        return _unchecked(why, None, *measured, difference.farthest)
    worst = max(errors.each, key=lambda name: errors.each[name])
    return Judgement(Correctness(name_of(errors.ratio), errors.ratio, *measured, worst))


def _share_of_way(base: Base, run: Mapping[str, Tensor] | None) -> float:
    """Return how far the median tensor of a run ended from the base's, as a share of the way that the base's
    weights travelled; 0 if the way is unknown.
    """
    if run is None or not base.way:
        return 0.0
    distances = (run[name].double() - value.double() for name, value in base.weights.items())
    return statistics.median(float(d.square().mean().sqrt()) for d in distances if d.numel()) / base.way


def _yardstick(base: Base, truth: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights whose distance from the base, `truth`, rounding explains.

    A training that jumps, as at a unit of a ReLU that crosses its threshold, ends much further away in the
    rougher run than in proportion to its rounding errors. Then the rougher run is the yardstick: a trial may
    jump where the other run did not.
    """
    assert base.yardstick is not None
    again = {name: base.yardstick[name].float() for name in truth}
    if base.rough is None:
        return again
    rough = {name: base.rough[name].float() for name in truth}
    spreads = [
        [float((run[name].double() - value).abs().sqrt().mean()) ** 2 for run in (again, rough)]
        for name, value in truth.items()
    ]
    jumps = [wide > JUMPS_FROM * ROUGH_TIMES * narrow for narrow, wide in spreads]
    return {name: rough[name] if jump else again[name] for name, jump in zip(truth, jumps, strict=True)}


def _unchecked(why: str, *measured: Any) -> Judgement:
    return Judgement(Correctness("unchecked", *measured), [why])
