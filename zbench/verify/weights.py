"""The verdict on the weights that a training script saved.

They are compared with the base configuration's, which is run twice. If these two results differ, their
distance is the yardstick. If they are the same bits, the yardstick is the distance of a third run, to which
rounding errors are added, or of a fourth one with larger errors if the training jumps. The error ratio and
its thresholds are those of `verdict`, with the base run in the place of the truth. If the file names a more
precise run (`verify.precise`), that run is the truth, and the base's distance from it the yardstick.

Nothing is decided if the yardstick is a quarter of the way that the weights travelled, and no fault is named
if the run with the larger errors is. An error below 1e-4 of the way of its tensor is healthy.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zbench.record.record import Correctness
from zbench.verify.distance import Difference, Healthy, difference_of, distances_of, errors_of
from zbench.verify.limits import (
    AUTOCAST_FROM,
    EQUIVALENT_UP_TO,
    JUMPS_FROM,
    LEAST_SHARE,
    LEAST_WAY,
    ROUGH_TIMES,
)
from zbench.verify.moves import Moves
from zbench.verify.trajectory import read_tensors, write_tensors
from zbench.verify.verdict import Judgement, name_of

_FORMAT = "weights-4"
_FACTS = ("way", "is_repeatable", "obstacle", "roundoff", "mixing")  # kept as JSON
_SHORT = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Base:
    """The base configuration's saved weights.

    yardstick: the weights of another run of it, or of a run with added rounding errors; None if all agree.
    rough: the weights of a run whose rounding errors are `ROUGH_TIMES` as large. first: the weights before
    the first step, if they are known. precise: the weights of a more precise run of it. way: the root mean
    square of the distances that weights travelled; None if unknown. is_repeatable: two runs ended with the
    same bits. obstacle: why nothing can be compared with it, with the remedy. roundoff: half a unit in the
    last place of the dtype in which autocast computed; 0 without autocast. mixing: the class of a layer with
    which a loss is no mean over samples; empty if there is none.
    """

    weights: Mapping[str, Tensor]
    yardstick: Mapping[str, Tensor] | None = None
    rough: Mapping[str, Tensor] | None = None
    first: Mapping[str, Tensor] = field(default_factory=dict)
    precise: Mapping[str, Tensor] | None = None
    way: float | None = None
    is_repeatable: bool = True
    obstacle: str | None = None
    roundoff: float = 0.0
    mixing: str = ""

    def ways(self) -> dict[str, float]:
        """Return the root mean square of the distances that the elements of each tensor travelled."""
        moved = {name: self.weights[name].double() - value.double() for name, value in self.first.items()}
        return {name: _size(distance) for name, distance in moved.items() if distance.numel()}


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of weights have the same names, dtypes, shapes and values."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def save_base(base: Base, path: Path) -> None:
    """Write a base to a safetensors file, whole or not at all."""
    runs = {name: getattr(base, name) or {} for name in ("weights", "yardstick", "rough", "first", "precise")}
    named = ((f"{run}/{name}", value) for run, weights in runs.items() for name, value in weights.items())
    tensors = {name: value.contiguous().clone() for name, value in named}
    facts = {fact: json.dumps(getattr(base, fact)) for fact in _FACTS}
    write_tensors(tensors, path, {"format": _FORMAT} | facts)


def load_base(path: Path) -> Base:
    """Read what `save_base` wrote; DamagedReferenceError where it is not that."""
    tensors, texts = read_tensors(path, _FORMAT)
    runs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        run, _, name = key.partition("/")
        runs.setdefault(run, {})[name] = tensor
    facts = {fact: json.loads(texts[fact]) for fact in _FACTS}
    return Base(**{"weights": {}, **runs}, **facts)  # type: ignore[arg-type]


def judge_weights(weights: Mapping[str, Tensor], base: Base) -> Judgement:
    """Return the verdict on the weights that a trial saved."""
    if obstacle := base.obstacle or _mismatch(weights, base):
        return _unchecked(f"not verified: {obstacle}")
    names = [name for name in base.weights if base.weights[name].numel()]
    ours = {name: weights[name].float() for name in names}
    theirs = {name: base.weights[name].float() for name in names}
    difference = difference_of(distances_of(ours, theirs), names)
    if difference.not_finite is not None:
        return Judgement(Correctness("wrong", worst_parameter=difference.not_finite))
    if difference.max_ulp == 0:
        is_measured = base.yardstick is not None or base.precise is not None
        return Judgement(Correctness("identical", 1.0 if is_measured else None, 0.0, 0))
    measured = (difference.max_abs, difference.max_ulp)
    if why := _unresolved(base, names):
        return _unchecked(why, None, *measured, difference.farthest)
    return _weighed(ours, theirs, base, difference)


def _mismatch(weights: Mapping[str, Tensor], base: Base) -> str | None:
    """Return why the weights cannot be compared, if they cannot."""
    for name, value in sorted(base.weights.items()):
        if name not in weights or weights[name].shape != value.shape:
            mismatch = f"has another shape of {name}" if name in weights else f"lacks {name}"
            return f"the checkpoint {mismatch}, unlike the base's"
    for run in filter(None, (base.yardstick, base.rough, base.precise)):
        if any(name not in run or run[name].shape != value.shape for name, value in base.weights.items()):
            return "two runs of the base saved different weights: save the same names and shapes every time"
    if not all(bool(value.float().isfinite().all()) for value in base.weights.values()):
        return "the base configuration's weights are not finite"
    return None


def _unresolved(base: Base, names: list[str]) -> str | None:
    """Return why only equal bits can be judged, if that is so."""
    if base.precise is not None:
        return None
    dtype = next((base.weights[name].dtype for name in names if base.weights[name].dtype in _SHORT), None)
    if dtype is not None:
        return (
            f"not the base configuration's bits, and the checkpoint is {str(dtype).removeprefix('torch.')}:"
            " its rounding hides faults; save float32 weights or, if the model itself is so short, name the"
            " flag that makes it float32, such as `verify.precise: {dtype: float32}`"
        )
    if base.yardstick is None:
        return (
            "not the base configuration's bits, and no run shows what rounding explains: let the command"
            " train with an optimizer of torch.optim"
        )
    return None


def _weighed(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], base: Base, difference: Difference
) -> Judgement:
    """Return the verdict by distance on finite weights that differ from the base's."""
    names = list(theirs)
    truth = {name: value.double() for name, value in (base.precise or theirs).items()}
    yardstick = theirs if base.precise is not None else _yardstick(base, truth)
    errors = errors_of(distances_of(ours, yardstick, truth), names, _healthy(base, names))
    measured = (difference.max_abs, difference.max_ulp)
    if why := _without_yardstick(base, is_fault=errors.ratio > EQUIVALENT_UP_TO):
        return _unchecked(f"not verified: {why}", None, *measured, difference.farthest)
    if base.roundoff and base.precise is None and EQUIVALENT_UP_TO < errors.ratio <= AUTOCAST_FROM:
        return _unchecked(
            f"not verified: the error ratio is {errors.ratio:.2g}, and autocast rounds as much as a small"
            " fault: name the flag that switches it off, such as `verify.precise: {amp: false}`",
            None,
            *measured,
            difference.farthest,
        )
    worst = max(errors.each, key=lambda name: errors.each[name])
    verdict = name_of(errors.ratio)
    moves = Moves(ours, theirs, base.first)
    if verdict == "equivalent" and base.precise is not None and moves.strays_from(truth):
        verdict = "drifted"
    diagnosis = None if verdict == "equivalent" else moves.diagnosis()
    return Judgement(Correctness(verdict, errors.ratio, *measured, worst, diagnosis=diagnosis))


def _without_yardstick(base: Base, *, is_fault: bool) -> str | None:
    """Return why the distances between runs of the base say nothing, with the remedy, if that is so."""
    share = 0.0 if base.is_repeatable else _share_of_way(base, base.yardstick)
    if share * EQUIVALENT_UP_TO >= 1 or (share > LEAST_WAY and not is_fault):
        return (
            f"two runs of the base configuration differ by {share:.0%} of the way that its weights travelled:"
            " set a seed, such as torch.manual_seed(0), before the model and the data are made"
        )
    runs = (
        [base.precise] if base.precise is not None else [base.yardstick, *([base.rough] if is_fault else [])]
    )
    if (share := max(_share_of_way(base, run) for run in runs)) * EQUIVALENT_UP_TO >= 1:
        return (
            f"rounding moves the base configuration's result by {share:.0%} of the way that its weights"
            " travelled: train fewer steps"
        )
    return None


def _share_of_way(base: Base, run: Mapping[str, Tensor] | None) -> float:
    """Return how far the median tensor of a run ended from the base's, as a share of the way that the base's
    weights travelled; 0 if the way is unknown.
    """
    if run is None:
        return 0.0
    distances = {
        name: _size(run[name].double() - value.double())
        for name, value in base.weights.items()
        if value.numel() and name in run
    }
    ways = {name: way for name, way in base.ways().items() if way > 0}
    if not ways:
        ways = dict.fromkeys(distances, base.way) if base.way else {}
    return statistics.median([distances[name] / way for name, way in ways.items()] or [0.0])


def _size(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


def _healthy(base: Base, names: list[str]) -> Healthy:
    """Return which errors are healthy, by the way of each tensor; of a tensor without one, none are."""
    ways = base.ways()
    if not ways:
        return Healthy()
    other = base.way or statistics.median(ways.values())
    return Healthy({name: ways.get(name, other) for name in names}, dict.fromkeys(ways, LEAST_SHARE))


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
