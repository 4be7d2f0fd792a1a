"""WorkloadSpec -> Workload."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from zbench.errors import UsageError
from zbench.spec.presets import gpt_shape, mlp_shape
from zbench.spec.workload import WorkloadSpec
from zbench.workloads.custom import ModelMadeBatches, model_factory
from zbench.workloads.data import BYTE_VOCABULARY, SyntheticTokens, TextBytes
from zbench.workloads.flops import counted_flops, gpt_flops, mlp_flops
from zbench.workloads.gpt import GPT
from zbench.workloads.mlp import MLP
from zbench.workloads.workload import Data, Workload

_Model = tuple[Callable[[], nn.Module], int, float]
"""A factory, the vocabulary that its data must have, and the operations of one micro-batch."""


def build_workload(spec: WorkloadSpec, *, seed: int, world_size: int, base_dir: Path) -> Workload:
    """Return the workload that the spec names; its data and weights depend on `seed` and nothing else.

    base_dir: where the relative path of a text file begins, and where `module:callable` is looked for first.
    Raises UsageError for what cannot be built: unknown model, preset or option, missing or too short text.
    """
    if ":" in spec.model:
        return _custom(spec, seed=seed, world_size=world_size, base_dir=base_dir)
    if spec.model not in _BUILTIN:
        raise UsageError(f"workload.model: expected gpt, mlp or module:callable, got {spec.model!r}")
    factory, vocabulary, flops = _BUILTIN[spec.model](spec)
    data = _tokens(spec, vocabulary, base_dir)
    tokens = spec.micro_batch_size * spec.sequence_length
    return Workload(factory, data, seed, world_size, tokens, spec.micro_batch_size, flops)


def _gpt(spec: WorkloadSpec) -> _Model:
    shape, length = gpt_shape(spec.preset, spec.options), spec.sequence_length
    factory = partial(
        GPT,
        sequence_length=length,
        activation_checkpointing=spec.activation_checkpointing,
        **dataclasses.asdict(shape),
    )
    flops = gpt_flops(shape, sequence_length=length, tokens=spec.micro_batch_size * length)
    return factory, shape.vocabulary, flops


def _mlp(spec: WorkloadSpec) -> _Model:
    shape, length = mlp_shape(spec.preset, spec.options), spec.sequence_length
    factory = partial(
        MLP,
        sequence_length=length,
        activation_checkpointing=spec.activation_checkpointing,
        **dataclasses.asdict(shape),
    )
    return factory, shape.vocabulary, mlp_flops(shape, sequence_length=length, samples=spec.micro_batch_size)


_BUILTIN: dict[str, Callable[[WorkloadSpec], _Model]] = {"gpt": _gpt, "mlp": _mlp}


def _tokens(spec: WorkloadSpec, vocabulary: int, base_dir: Path) -> Data:
    if spec.data.text is None:
        return SyntheticTokens(
            vocabulary=vocabulary, sequence_length=spec.sequence_length, batch_size=spec.micro_batch_size
        )
    if vocabulary < BYTE_VOCABULARY:
        raise UsageError(
            f"workload.options.vocabulary: text needs {BYTE_VOCABULARY}, one for each byte, got {vocabulary}"
        )
    return TextBytes(
        base_dir / spec.data.text, sequence_length=spec.sequence_length, batch_size=spec.micro_batch_size
    )


def _custom(spec: WorkloadSpec, *, seed: int, world_size: int, base_dir: Path) -> Workload:
    for key, value in (("preset", spec.preset), ("activation_checkpointing", spec.activation_checkpointing)):
        if value:
            raise UsageError(
                f"workload.{key} applies to the built-in models; {spec.model} takes workload.options"
            )
    factory = model_factory(spec.model, spec.options, base_dir)
    make_batch = getattr(factory().to("meta"), "make_batch", None)  # it keeps its model, but no memory
    data: Data
    if make_batch is None:
        data = _tokens(spec, BYTE_VOCABULARY, base_dir)
    else:
        data = ModelMadeBatches(
            make_batch, batch_size=spec.micro_batch_size, sequence_length=spec.sequence_length
        )
    tokens = spec.micro_batch_size * spec.sequence_length
    workload = Workload(factory, data, seed, world_size, tokens, spec.micro_batch_size)
    return dataclasses.replace(workload, flops_per_micro_batch=counted_flops(workload))
