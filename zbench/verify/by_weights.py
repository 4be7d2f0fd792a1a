"""The verdict on a script that is not ours: by the weights that it saved, against the base configuration's.

The base configuration is run twice. Where its two results differ, their distance is the yardstick. Where they
are the same bits, it is the distance of a third run, from weights moved by one unit in the last place. The
error ratio and its thresholds are those of `verdict`, with the base run in the place of the truth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from zbench.record.record import Correctness
from zbench.verify.distance import compare, errors_of
from zbench.verify.trajectory import all_finite
from zbench.verify.verdict import Judgement, name_of

_FORMAT = "weights-1"


@dataclass(frozen=True, slots=True)
class Base:
    """What the base configuration saved. yardstick: what another run of it saved; None where all agree."""

    weights: Mapping[str, Tensor]
    yardstick: Mapping[str, Tensor] | None


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of weights have the same names, dtypes, shapes and values."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def save_base(base: Base, path: Path) -> None:
    """Write a base to a safetensors file, whole or not at all."""
    tensors = {f"base/{name}": value.contiguous().clone() for name, value in base.weights.items()}
    tensors |= {f"again/{name}": value.contiguous().clone() for name, value in (base.yardstick or {}).items()}
    draft = path.with_name(path.name + ".tmp")
    save_file(tensors, draft, metadata={"format": _FORMAT})
    draft.replace(path)


def load_base(path: Path) -> Base:
    """Read what `save_base` wrote."""
    groups: dict[str, dict[str, Tensor]] = {"base": {}, "again": {}}
    with safe_open(path, framework="pt") as file:
        if file.metadata().get("format") != _FORMAT:
            raise ValueError(f"{path} is no base of format {_FORMAT}; remove it and run the sweep again")
        for key in file.keys():  # noqa: SIM118 - a file handle, not a mapping
            kind, _, name = key.partition("/")
            groups[kind][name] = file.get_tensor(key)
    return Base(groups["base"], groups["again"] or None)


def judge_weights(mine: Mapping[str, Tensor], base: Base) -> Judgement:
    """Return the verdict on the weights that a trial saved."""
    missing = sorted(base.weights.keys() - mine.keys())
    reshaped = [
        name for name in base.weights.keys() & mine.keys() if mine[name].shape != base.weights[name].shape
    ]
    if missing or reshaped:
        what = f"lacks {missing[0]}" if missing else f"has another shape of {reshaped[0]}"
        return Judgement(
            Correctness("unchecked"), [f"not verified: the checkpoint {what}, unlike the base's"]
        )
    names = [name for name in base.weights if base.weights[name].numel()]
    ours = {name: mine[name].float() for name in names}
    theirs = {name: base.weights[name].float() for name in names}
    if not all_finite(theirs):
        return Judgement(
            Correctness("unchecked"), ["not verified: the base configuration's weights are not finite"]
        )
    found = compare(ours, theirs, names)
    if found.not_finite is not None:
        return Judgement(Correctness("wrong", worst_parameter=found.not_finite))
    if found.max_ulp == 0:
        return Judgement(Correctness("identical", 1.0 if base.yardstick else None, 0.0, 0))
    if base.yardstick is None:
        said = "not the base configuration's bits; no yardstick, since all its runs end with the same bits"
        return Judgement(Correctness("unchecked", None, found.max_abs, found.max_ulp, found.farthest), [said])
    again = {name: base.yardstick[name].float() for name in names}
    errors = errors_of(ours, again, {name: value.double() for name, value in theirs.items()})
    worst = max(errors.each, key=lambda name: errors.each[name])
    return Judgement(Correctness(name_of(errors.ratio), errors.ratio, found.max_abs, found.max_ulp, worst))
