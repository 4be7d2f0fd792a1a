"""Trajectories: what a training run went through, digests of it, and how a reference is kept in a file."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from zbench.errors import DamagedReferenceError, UsageError, undamaged

_BLOCK = 1 << 16
_BASE = 0x9E3779B97F4A7C15
_FORMAT = "8"
_TEXTS = ("names", "skipped", "inputs", "deterministic_steps", "warnings")  # no tensors, kept as JSON


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What one run observed, over S steps of W ranks with B backwards each, for P trained parameters.

    losses [S, W, B] float64. grad_norms [S] float64: of averaged, unscaled gradients before clipping; NaN
    where not known. digests [S, P] int64: of each parameter's float32 bits after each step, in the order of
    `names`. parameters: final values by name, float32. moments: final first moments (exp_avg) by name,
    float32; empty where the engine does not tell. skipped: the steps (from 0) that a loss scaler skipped.
    sketches [S + 1, P, 2, 64] float64: of weights and first moments before the first step and after each, NaN
    where not known; empty where nobody looked.
    """

    names: tuple[str, ...]
    losses: Tensor
    grad_norms: Tensor
    digests: Tensor
    parameters: Mapping[str, Tensor]
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    sketches: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))


@dataclass(frozen=True, slots=True)
class Reference:
    """The plain run and, if `truth` is not empty, the final values of the float64 run (float64, by name).

    travelled [P] float64: how far (L2) each parameter moved from its first value. clipping_error [] float64:
    the largest relative error, over the clipped steps, of the norm that `clip_grad_norm_` takes. inputs: the
    user's files that it was computed from, each with a digest (`record.inputs`). gradients, true_gradients:
    what both runs took as the gradient in the first step that was not skipped, by name. contributions:
    sketches (`slope.sketch`) [W, B, 64] float64 of what each backward of each rank adds to it. active [S, P]
    bool: which parameters had a gradient. buffers, true_buffers: final ones by `RANK/NAME`. frozen: digests
    [2] int64 of what is not trained, in float32 and in the model's dtype. deterministic_steps: how many first
    steps decide `identical`; 0 for all. warnings: of operations that were not deterministic there.
    true_sketches, true_losses: as a Trajectory has them, of the float64 run. gradient_sizes: by name,
    float32: the root of its final second moments, each element's size of gradient.
    """

    plain: Trajectory
    travelled: Tensor
    active: Tensor
    inputs: Mapping[str, str] = field(default_factory=dict)
    truth: Mapping[str, Tensor] = field(default_factory=dict)
    true_moments: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    true_gradients: Mapping[str, Tensor] = field(default_factory=dict)
    contributions: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    true_buffers: Mapping[str, Tensor] = field(default_factory=dict)
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    clipping_error: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    true_sketches: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    true_losses: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    deterministic_steps: int = 0
    warnings: Sequence[str] = ()
    gradient_sizes: Mapping[str, Tensor] = field(default_factory=dict)


def save_reference(reference: Reference, path: Path) -> None:
    """Write a reference to a safetensors file, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    about = {"format": _FORMAT}
    for name, value in (_fields(reference.plain) | _fields(reference)).items():
        if name in _TEXTS:
            about[name] = json.dumps(value)
        elif isinstance(value, Tensor):
            tensors[name] = value.contiguous()
        elif name != "plain":
            tensors |= {f"{name}/{key}": tensor.contiguous() for key, tensor in value.items()}
    write_tensors(tensors, path, about)


def _fields(of: Trajectory | Reference) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in dataclasses.fields(of)}


def load_steps(path: Path) -> tuple[list[str], NDArray[np.bool_], list[list[int]]]:
    """Return a reference's trained parameters, in which steps [S, P] each had a gradient, and digests [S][P]
    of their values after each step.
    """
    with _whole(path), safe_open(path, framework="pt") as file:
        active = file.get_tensor("active").numpy().copy()
        digests = file.get_tensor("digests").tolist()
        return json.loads(file.metadata()["names"]), active, digests


def load_determinism(path: Path) -> tuple[int, list[str]]:
    """Return how many first steps of a reference are deterministic, and its warnings."""
    with _whole(path), safe_open(path, framework="pt") as file:
        about = file.metadata()
        return json.loads(about["deterministic_steps"]), json.loads(about["warnings"])


def load_reference(path: Path) -> Reference:
    """Read what `save_reference` wrote; tensors are mapped from the file, not copied.

    DamagedReferenceError for a file that is damaged, not there or of another format.
    """
    tensors, about = read_tensors(path, _FORMAT)
    values: dict[str, Any] = {name: json.loads(about[name]) for name in _TEXTS}
    values |= {"names": tuple(values["names"]), "skipped": tuple(values["skipped"])}
    for key, tensor in tensors.items():
        group, is_of_group, name = key.partition("/")
        if is_of_group:
            values.setdefault(group, {})[name] = tensor
        else:
            values[key] = tensor
    plain = {field.name: values.pop(field.name, {}) for field in dataclasses.fields(Trajectory)}
    return Reference(Trajectory(**plain), **values)


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


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether every element of every tensor is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def digest(tensor: Tensor) -> int:
    """Return a signed 64-bit digest of the bits of a tensor of any shape, dtype and device.

    Modulo 2^64, each block of 8-byte words is the sum of its words, each times an odd number of its place
    (multilinear hashing). The blocks are the coefficients of a polynomial at an odd number. One changed word
    always changes the digest; several cancel with a probability of about 2^-63. -0.0 and 0.0 differ, as their
    bits do.
    """
    words = _words(tensor.detach())
    factors = _factors(words.device)
    total = 0
    for block in torch.split(words, _BLOCK):
        total = (total * _BASE + int((block * factors[: len(block)]).sum())) % 2**64
    return total - 2**64 * (total >= 2**63)


def _words(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes as int64 words, the last one filled up with zeros."""
    raw = tensor.contiguous().view(-1).view(torch.uint8)
    if rest := len(raw) % 8:
        raw = torch.cat([raw, raw.new_zeros(8 - rest)])
    return raw.view(torch.int64)


@cache
def _factors(device: torch.device) -> Tensor:
    """Return one odd number for each place in a block."""
    numbers = torch.randint(-(2**63), 2**63 - 1, (_BLOCK,), generator=torch.Generator().manual_seed(0))
    return (numbers | 1).to(device)
