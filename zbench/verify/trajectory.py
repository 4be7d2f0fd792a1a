"""Trajectories: what a training run went through, and how a reference is kept in a file."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from zbench.errors import DamagedReferenceError, UsageError, undamaged
from zbench.verify.files import DigestedTensor, Elements, TensorFile
from zbench.verify.sums import digest

_FORMAT = "11"
_TEXTS = ("names", "skipped", "inputs", "deterministic_steps", "warnings", "shapes")  # kept as JSON
PER_ELEMENT = ("parameters", "moments", "gradients", "truth", "true_moments", "true_gradients", "weights")
"""The fields of a Reference that have a value for each element; they are read run by run."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What one run observed, over S steps of W ranks with B backwards each, for P parameters.

    losses [S, W, B] float64. grad_norms [S] float64: of averaged, unscaled gradients before clipping; NaN if
    unknown. digests [S, P] int64: of each parameter's float32 bits after each step, in the order of `names`.
    skipped: the steps (from 0) that a loss scaler skipped. sketches [S + 1, P, 2, 128] float64: the signed
    sums of weights and first moments before the first step and after each, NaN if unknown; empty if nobody
    looked.
    """

    names: tuple[str, ...]
    losses: Tensor
    grad_norms: Tensor
    digests: Tensor
    skipped: tuple[int, ...] = ()
    sketches: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))


@dataclass(frozen=True, slots=True)
class Reference:
    """The plain run and, if `truth` is not empty, the float64 run.

    shapes: of the P trained parameters, by name. Values for each element, flat, by name: parameters, moments:
    the plain run's final values and first moments, float32. truth, true_moments: of the float64 run, float64.
    gradients, true_gradients: what both runs took as the gradient in the first step that was not skipped.
    weights: how much an element's error counts, float32 (`distance.relative_sizes`).

    travelled [P] float64: how far (L2) each parameter moved from its first value. moment_sizes [P] float64:
    the largest root mean square that each first moment had after any step. clipping_error [] float64:
    the largest relative error, over the clipped steps, of the norm that `clip_grad_norm_` takes. inputs: the
    user's files that it was computed from, each with a digest (`record.inputs`). contributions: signed sums
    [W, B, 128] float64 of what each backward of each rank adds to the first gradient. active [S, P] bool:
    which parameters had a gradient. buffers, true_buffers: final ones by `RANK/NAME`. buffer_moves: [S]
    float64, by how many roundings each floating-point buffer changed in each step. frozen: digests [2] int64
    of what is not trained, in float32 and in the model's dtype. deterministic_steps: how many first steps
    decide `identical`; 0 for all. warnings: of operations that were not deterministic there.
    true_sketches, true_losses: as a Trajectory has them, of the float64 run.
    """

    plain: Trajectory
    travelled: Tensor
    active: Tensor
    shapes: Mapping[str, Sequence[int]]
    parameters: Mapping[str, Elements]
    moments: Mapping[str, Elements] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    truth: Mapping[str, Elements] = field(default_factory=dict)
    true_moments: Mapping[str, Elements] = field(default_factory=dict)
    moment_sizes: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    gradients: Mapping[str, Elements] = field(default_factory=dict)
    true_gradients: Mapping[str, Elements] = field(default_factory=dict)
    contributions: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    true_buffers: Mapping[str, Tensor] = field(default_factory=dict)
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    clipping_error: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    true_sketches: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    true_losses: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    deterministic_steps: int = 0
    warnings: Sequence[str] = ()
    weights: Mapping[str, Elements] = field(default_factory=dict)
    buffer_moves: Mapping[str, Tensor] = field(default_factory=dict)

    def elements(self, name: str) -> int:
        """Return the number of elements of a parameter."""
        return torch.Size(self.shapes[name]).numel()


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


def load_determinism(path: Path) -> tuple[int, list[str]]:
    """Return how many first steps of a reference are deterministic, and its warnings."""
    with reading(path):
        texts = TensorFile(path).texts
        return json.loads(texts["deterministic_steps"]), json.loads(texts["warnings"])


def load_reference(path: Path) -> Reference:
    """Read what `save_reference` wrote. Values for each element stay in the file: see `require_undamaged`.

    DamagedReferenceError for a file that is damaged, not there or of another format.
    """
    with reading(path):
        file, about = _opened(path, _FORMAT)
        digests = json.loads(about["digests"])
        values: dict[str, Any] = {name: json.loads(about[name]) for name in _TEXTS}
        values |= {"names": tuple(values["names"]), "skipped": tuple(values["skipped"])}
        for key, tensor in file.tensors.items():
            group, is_of_group, name = key.partition("/")
            if group in PER_ELEMENT:
                values.setdefault(group, {})[name] = tensor
            elif is_of_group:
                values.setdefault(group, {})[name] = _undamaged(tensor, digests[key])
            else:
                values[key] = _undamaged(tensor, digests[key])
    plain = {field.name: values.pop(field.name, {}) for field in dataclasses.fields(Trajectory)}
    return Reference(Trajectory(**plain), **({"parameters": {}} | values))


def digests_read(reference: Reference) -> dict[str, tuple[int, int]]:
    """Return what was read of each tensor of a reference's file: the digest and the number of elements."""
    return {
        f"{group}/{name}": (tensor.seen, tensor.count)
        for group in PER_ELEMENT
        for name, tensor in getattr(reference, group).items()
        if isinstance(tensor, DigestedTensor)
    }


def require_undamaged(path: Path, of_ranks: Sequence[Mapping[str, tuple[int, int]]]) -> None:
    """DamagedReferenceError if what the ranks read has another digest than the file says.

    of_ranks: `digests_read` of each rank. A tensor that was not read exactly once is not judged.
    """
    with reading(path):
        file, about = _opened(path, _FORMAT)
        expected = json.loads(about["digests"])
        for key, tensor in file.tensors.items():
            seen = sum(reads[key][0] for reads in of_ranks if key in reads) % 2**64
            count = sum(reads[key][1] for reads in of_ranks if key in reads)
            if count == len(tensor) and seen != expected[key] % 2**64:
                raise ValueError(f"the digest of {key} is another one")


def write_tensors(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str]) -> None:
    """Write tensors, none of which share memory, to a safetensors file with digests; whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    texts = {**about, "digests": json.dumps({name: digest(tensor) for name, tensor in tensors.items()})}
    facts = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in tensors.items()}
    save_file(dict(tensors), draft, metadata={**texts, "digest": _digest(facts, texts)})
    draft.replace(path)


def read_tensors(path: Path, form: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and texts that `write_tensors` wrote, with `format: form` among the texts.

    DamagedReferenceError for anything else.
    """
    with reading(path):
        file, about = _opened(path, form)
        digests = json.loads(about.pop("digests"))
        return {key: _undamaged(tensor, digests[key]) for key, tensor in file.tensors.items()}, about


def _opened(path: Path, form: str) -> tuple[TensorFile, dict[str, str]]:
    """Return an open file and its texts; ValueError if its header is damaged or of another format."""
    file = TensorFile(path)
    about = dict(file.texts)
    if about.get("format") != form:
        raise ValueError(f"its format is {str(about.get('format'))!r}")
    facts = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in file.tensors.items()}
    if about.pop("digest", None) != _digest(facts, about):
        raise ValueError("its digest is another one")
    return file, about


def _read(tensor: DigestedTensor) -> Tensor:
    return tensor[:].view(tensor.shape)


def _undamaged(tensor: DigestedTensor, expected: int) -> Tensor:
    """Return a whole tensor; ValueError if its digest is another one."""
    value = _read(tensor)
    if tensor.seen != expected % 2**64:
        raise ValueError("the digest of a tensor is another one")
    return value


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert an exception of the body, which reads the file of a reference, to a DamagedReferenceError."""
    try:
        with undamaged(path, "remove it and run the sweep again"):
            yield
    except UsageError as error:
        raise DamagedReferenceError(str(error)) from None


def _digest(facts: Mapping[str, tuple[torch.dtype, list[int]]], texts: Mapping[str, str]) -> str:
    """Return hex digits of names, dtypes and shapes of tensors, and of the texts beside them."""
    named = {name: (str(dtype), shape) for name, (dtype, shape) in facts.items()}
    return hashlib.sha256(json.dumps([named, dict(texts)], sort_keys=True).encode()).hexdigest()
