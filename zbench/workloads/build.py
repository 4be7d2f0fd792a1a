"""WorkloadSpec -> Workload."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from zbench.errors import UsageError
from zbench.spec.shapes import gpt_shape, mlp_shape
from zbench.spec.workload import WorkloadSpec
from zbench.workloads.data import token_data
from zbench.workloads.flops import gpt_flops, mlp_flops
from zbench.workloads.models import GPT, MLP
from zbench.workloads.own import own_workload
from zbench.workloads.workload import Workload, derived_seed, drawn_by

_Model = tuple[Callable[[], nn.Module], int, float]
"""A factory, the vocabulary that its data must have, and the operations of one micro-batch."""


def build_workload(spec: WorkloadSpec, *, seed: int, world_size: int, base_dir: Path) -> Workload:
    """Return the workload that the spec names; its data and weights depend on `seed` and nothing else.

    base_dir: where the relative path of a text file begins, and where `module:callable` is looked for first.
    Raises UsageError for what cannot be built: unknown model, preset or option, missing or too short text.
    """
    if ":" in spec.model:
        with drawn_by(derived_seed(seed, -2)):  # a module or dataset may draw where it is made
            return own_workload(spec, seed=seed, world_size=world_size, base_dir=base_dir)
    if spec.model not in _BUILTIN:
        raise UsageError(
            f"workload.model: expected gpt, mlp, hf:NAME_OR_PATH or module:callable, got {spec.model!r}"
        )
    for key, value in (("data.dataset", spec.data.dataset), ("loss", spec.loss)):
        if value:
            raise UsageError(f"workload.{key} is for a model of your own, not for {spec.model}; leave it out")
    factory, vocabulary, flops = _BUILTIN[spec.model](spec)
    data = token_data(spec, vocabulary, base_dir)
    tokens = spec.micro_batch_size * spec.sequence_length
    return Workload(factory, data, seed, world_size, tokens, spec.micro_batch_size, lambda _: flops)


def _gpt(spec: WorkloadSpec) -> _Model:
    shape, length = gpt_shape(spec.preset, spec.options), spec.sequence_length
    flops = gpt_flops(shape, sequence_length=length, tokens=spec.micro_batch_size * length)
    return _factory(GPT, shape, spec), shape.vocabulary, flops


def _mlp(spec: WorkloadSpec) -> _Model:
    shape, length = mlp_shape(spec.preset, spec.options), spec.sequence_length
    flops = mlp_flops(shape, sequence_length=length, samples=spec.micro_batch_size)
    return _factory(MLP, shape, spec), shape.vocabulary, flops


def _factory(kind: type[nn.Module], shape: Any, spec: WorkloadSpec) -> Callable[[], nn.Module]:
    """Return what makes a model of this shape (a dataclass)."""
    length, checkpointing = spec.sequence_length, spec.activation_checkpointing
    given = dataclasses.asdict(shape)
    return partial(kind, sequence_length=length, activation_checkpointing=checkpointing, **given)


_BUILTIN: dict[str, Callable[[WorkloadSpec], _Model]] = {"gpt": _gpt, "mlp": _mlp}
