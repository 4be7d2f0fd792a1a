"""Trajectories: what a training run went through, and how a reference is kept in a file."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from zbench.errors import DamagedReferenceError, UsageError, undamaged
from zbench.verify.digest import digest

_FORMAT = "2"
_OF_REFERENCE = (
    "truth", "true_moments", "gradients", "true_gradients", "contributions", "buffers", "true_buffers",
    "frozen",
)  # fmt: skip
_PREFIXES = ("parameters", "moments", *_OF_REFERENCE)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What one run observed, over S steps of W ranks with B backwards each, for P trained parameters.

    losses [S, W, B] float64. grad_norms [S] float64: of averaged, unscaled gradients before clipping; NaN
    where not known. digests [S, P] int64: of each parameter's float32 bits after each step, in the order of
    `names`. parameters: final values by name, float32. moments: final first moments (exp_avg) by name,
    float32; empty where the engine does not tell. skipped: the steps (from 0) that a loss scaler skipped.
    """

    names: tuple[str, ...]
    losses: Tensor
    grad_norms: Tensor
    digests: Tensor
    parameters: Mapping[str, Tensor]
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """The plain run and, if `truth` is not empty, the final values of the float64 run (float64, by name).

    travelled [P] float64: how far (L2) each parameter moved from its first value. inputs: the user's files
    that it was computed from, each with a digest (`record.inputs`). gradients, true_gradients: what both runs
    took as the gradient in the first step that was not skipped, by name; contributions: sketches
    (`slope.sketch`) [W, B, 64] float64 of what each backward of each rank adds to it. active [S, P] bool:
    which parameters had a gradient. buffers, true_buffers: final ones by `RANK/NAME`. frozen: digests [2]
    int64 of what is not trained, in float32 and in the model's dtype.
    """

    plain: Trajectory
    travelled: Tensor
    inputs: Mapping[str, str] = field(default_factory=dict)
    truth: Mapping[str, Tensor] = field(default_factory=dict)
    true_moments: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    true_gradients: Mapping[str, Tensor] = field(default_factory=dict)
    contributions: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    true_buffers: Mapping[str, Tensor] = field(default_factory=dict)
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    active: Tensor | None = None


def save_reference(reference: Reference, path: Path) -> None:
    """Write a reference to a safetensors file, whole or not at all."""
    plain = reference.plain
    tensors = {
        "losses": plain.losses,
        "grad_norms": plain.grad_norms,
        "digests": plain.digests,
        "travelled": reference.travelled,
    }
    if reference.active is not None:
        tensors["active"] = reference.active
    groups = (plain.parameters, plain.moments, *(getattr(reference, name) for name in _OF_REFERENCE))
    for prefix, group in zip(_PREFIXES, groups, strict=True):
        tensors |= {f"{prefix}/{name}": tensor for name, tensor in group.items()}
    about = {
        "format": _FORMAT,
        "inputs": json.dumps(dict(reference.inputs)),
        "names": json.dumps(plain.names),
        "skipped": json.dumps(plain.skipped),
    }
    write_tensors({name: tensor.contiguous() for name, tensor in tensors.items()}, path, about)


def load_active(path: Path) -> tuple[tuple[str, ...], NDArray[np.bool_]] | None:
    """Return a reference's trained parameters, and in which steps [S, P] each had a gradient."""
    with undamaged(path, "remove it and run the sweep again"), safe_open(path, framework="pt") as file:
        names = tuple(json.loads((file.metadata() or {})["names"]))
        return (names, file.get_tensor("active").numpy().copy()) if "active" in file.keys() else None  # noqa: SIM118


def load_reference(path: Path) -> Reference:
    """Read what `save_reference` wrote; tensors are mapped from the file, not copied.

    DamagedReferenceError for a file that is damaged, not there or of another format.
    """
    with _whole(path):
        tensors, about = read_tensors(path, _FORMAT)
        reference = _reference(tensors, about)
        _check(reference)
    return reference


def write_tensors(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str]) -> None:
    """Write tensors, none of which share memory, to a safetensors file with a digest; whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    save_file(dict(tensors), draft, metadata={**about, "digest": _digest(tensors, about)})
    draft.replace(path)


def read_tensors(path: Path, form: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and texts that `write_tensors` wrote, with `format: form` among the texts.

    DamagedReferenceError for anything else.
    """
    with _whole(path), safe_open(path, framework="pt") as file:
        about = dict(file.metadata() or {})
        if about.get("format") != form:
            raise ValueError(f"its format is {str(about.get('format'))!r}")
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
        if about.pop("digest", None) != _digest(tensors, about):
            raise ValueError("its digest is another one")
    return tensors, about


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    try:
        with undamaged(path, "remove it and run the sweep again"):
            yield
    except UsageError as error:
        raise DamagedReferenceError(str(error)) from None


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Return hex digits of names, types, shapes and bits of tensors, and of the texts beside them."""
    facts = {name: (str(t.dtype), list(t.shape), digest(t)) for name, t in tensors.items()}
    return hashlib.sha256(json.dumps([facts, dict(about)], sort_keys=True).encode()).hexdigest()


def _check(reference: Reference) -> None:
    """Raise ValueError where a reference's parts do not belong together."""
    plain, names = reference.plain, set(reference.plain.names)
    steps, count = len(plain.losses), len(plain.names)
    floats = [plain.losses, plain.grad_norms, reference.travelled]
    if (
        (plain.losses.dim(), plain.grad_norms.shape) != (3, (steps,))
        or (plain.digests.shape, reference.travelled.shape) != ((steps, count), (count,))
        or plain.digests.dtype != torch.int64
        or not all(numbers.is_floating_point() for numbers in floats)
        or any(type(step) is not int or not 0 <= step < steps for step in plain.skipped)
    ):
        raise ValueError("its steps do not belong together")
    if count != len(names) or plain.parameters.keys() != names or not plain.moments.keys() <= names:
        raise ValueError("its parameters are not those it names")
    if any(value.dtype != torch.float32 for value in (*plain.parameters.values(), *plain.moments.values())):
        raise ValueError("its parameters or moments are not in float32")
    if reference.truth.keys() not in (set(), names):
        raise ValueError("its truth is not whole")
    if reference.true_moments.keys() not in (set(), plain.moments.keys()):
        raise ValueError("its true moments are not whole")
    if any(steps.shape != plain.digests.shape for steps in (reference.active,) if steps is not None):
        raise ValueError("its active parameters are not those it names")
    if not reference.gradients.keys() <= names or not reference.true_gradients.keys() <= names:
        raise ValueError("its gradients are not those of its parameters")
    shaped = (reference.gradients, reference.true_gradients)
    for group in (plain.moments, reference.truth, reference.true_moments, *shaped):
        if any(v.shape != plain.parameters[n].shape or not v.is_floating_point() for n, v in group.items()):
            raise ValueError("its moments or its truth are not those of its parameters")


def _reference(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> Reference:
    groups: dict[str, dict[str, Tensor]] = {prefix: {} for prefix in _PREFIXES}
    single: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        prefix, slash, name = key.partition("/")
        if slash:
            groups[prefix][name] = tensor
        else:
            single[key] = tensor
    plain = Trajectory(
        names=tuple(json.loads(about["names"])),
        losses=single["losses"],
        grad_norms=single["grad_norms"],
        digests=single["digests"],
        parameters=groups["parameters"],
        moments=groups["moments"],
        skipped=tuple(json.loads(about["skipped"])),
    )
    return Reference(
        plain,
        single["travelled"],
        json.loads(about.get("inputs", "{}")),
        **{name: groups[name] for name in _OF_REFERENCE},
        active=single.get("active"),
    )


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether every element of every tensor is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
