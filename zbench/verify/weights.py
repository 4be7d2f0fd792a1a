"""The weights that a training script saved: how they are read, and the verdict on them.

They are read from safetensors, torch files, and folders of DeepSpeed's. Torch files are read with
`weights_only=True`: nothing in them is run. Classes that torch does not know, as DeepSpeed's checkpoints
hold, are read as inert stand-ins.

The verdict on a script compares its weights with the base configuration's, which is run twice. If these two
results differ, their distance is the yardstick. If they are the same bits, the yardstick is the distance of a
third run, to which rounding errors are added, or of a fourth one with larger errors if the training jumps.
The error ratio and its thresholds are those of `verdict`, with the base run in the place of the truth.
Nothing is decided if the yardstick is a quarter of the way that the weights travelled, and no fault is named
if the run with the larger errors is.
"""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from zbench.errors import UsageError
from zbench.record.record import Correctness
from zbench.verify.distance import difference_of, distances_of, errors_of
from zbench.verify.limits import EQUIVALENT_UP_TO, JUMPS_FROM, ROUGH_TIMES
from zbench.verify.trajectory import read_tensors, write_tensors
from zbench.verify.verdict import Judgement, name_of

_FORMAT = "weights-2"
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_PARTS = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")
_NO_WEIGHTS = ("optim", "rng", "sched", "training_args")  # how files of trainers' begin that hold other state
_WRAPPERS = ("module", "model", "state_dict", "model_state_dict")
_EXPECTED = "expected *.safetensors, a torch file (.pt, .pth, .bin), or a folder of them or of DeepSpeed's"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return name -> floating-point weight on the CPU; UsageError where there is none to be read."""
    if not path.exists():
        raise UsageError(f"workload.checkpoint: the command left no {path.name}; {_EXPECTED}")
    tensors = _of_folder(path) if path.is_dir() else _of_file(path)
    weights = {name: value for name, value in tensors.items() if value.is_floating_point()}
    if not weights:
        raise UsageError(f"workload.checkpoint: no weights in {path.name}; {_EXPECTED}")
    return weights


def _of_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except Exception as error:
            raise UsageError(f"workload.checkpoint: {path.name} is no safetensors file: {error}") from None
    if path.suffix not in _TORCH:
        raise UsageError(f"workload.checkpoint: cannot read {path.name}; {_EXPECTED}")
    return dict(_tensors(_loaded(path)))


def _of_folder(path: Path) -> dict[str, Tensor]:
    latest = path / "latest"
    if latest.is_file() and (path / latest.read_text().strip()).is_dir():
        path = path / latest.read_text().strip()
    if (path / "mp_rank_00_model_states.pt").is_file() or list(path.glob("zero_pp_rank_0_*model_states.pt")):
        return _of_deepspeed(path)
    for pattern in ("*.safetensors", *(f"*{ending}" for ending in _TORCH)):
        files = sorted(file for file in path.glob(pattern) if not file.name.startswith(_NO_WEIGHTS))
        if files:
            return _of_files(files)
    return {}


def _of_files(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return the weights of files that each hold some; UsageError where two hold another value of one."""
    weights: dict[str, Tensor] = {}
    holders: dict[str, Path] = {}
    for file in files:
        for name, value in _of_file(file).items():
            if name in weights and not torch.equal(weights[name], value):
                raise UsageError(
                    f"workload.checkpoint: {holders[name].name} and {file.name} hold different values of"
                    f" {name!r}; name the file that the run trained"
                )
            weights[name], holders[name] = value, file
    return weights


def _of_deepspeed(path: Path) -> dict[str, Tensor]:
    """Return the weights of a DeepSpeed checkpoint: float32 masters where ZeRO keeps them."""
    models = [path / "mp_rank_00_model_states.pt", *sorted(path.glob("zero_pp_rank_0_*model_states.pt"))]
    state = _loaded(next(file for file in models if file.is_file()))
    module = dict(_tensors(state.get("module") or {}))
    shapes = state.get("param_shapes")
    numbered = {int(match[1]): file for file in path.iterdir() if (match := _PARTS.fullmatch(file.name))}
    parts = [_loaded(numbered[rank])["optimizer_state_dict"] for rank in sorted(numbered)]
    if not parts or not shapes:
        return module
    groups = [dict(group) for group in (shapes if isinstance(shapes, list) else [shapes])]
    if "fp32_flat_groups" in parts[0]:  # stage 3: every weight is divided among the ranks
        flat = [torch.cat(list(part["fp32_flat_groups"])) for part in parts]
        return module | dict(_of_stage_3(groups, flat))
    masters = "single_partition_of_fp32_groups"
    if masters in parts[0]:
        for at, group in enumerate(groups):
            module |= dict(_cut(group, torch.cat([part[masters][at] for part in parts])))
    return module


def _cut(shapes: Mapping[str, torch.Size], flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    sizes = [shape.numel() for shape in shapes.values()]
    for (name, shape), part in zip(shapes.items(), flat[: sum(sizes)].split_with_sizes(sizes), strict=True):
        yield name, part.reshape(shape)


def _of_stage_3(groups: list[dict[str, torch.Size]], flat: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights of which each rank has an equal, padded part, one weight after another."""
    at = 0
    ranks = len(flat)
    for name, shape in (item for group in groups for item in group.items()):
        each = -(-shape.numel() // ranks)
        yield name, torch.cat([part[at : at + each] for part in flat])[: shape.numel()].reshape(shape)
        at += each


def _tensors(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the named tensors of a state dict, from inside what it is usually wrapped in."""
    if not isinstance(value, Mapping):
        return
    inner = next((value[key] for key in _WRAPPERS if isinstance(value.get(key), Mapping)), None)
    for name, item in (value if inner is None else inner).items():
        if isinstance(item, Tensor):
            yield f"{prefix}{name}", item


def _loaded(path: Path) -> Any:
    """Return what a torch file holds, with inert stand-ins for classes that torch does not know."""
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        stand_ins = [(type(name.rpartition(".")[2], (_Inert,), {}), name) for name in unknown]
        with torch.serialization.safe_globals(list(stand_ins)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"workload.checkpoint: cannot read {path.name} without running it: {first}"
        ) from None


class _Inert:
    """Takes the place of a class: keeps nothing and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any arguments."""

    def __setstate__(self, _: Any) -> None:
        """Take any state."""


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
