"""Builds a Workload from a WorkloadSpec."""

from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from zbench.errors import UsageError
from zbench.spec.shapes import GptShape, MlpShape, gpt_shape, mlp_shape
from zbench.spec.workload import WorkloadSpec
from zbench.workloads.checkpointing import checkpointed
from zbench.workloads.data import token_data
from zbench.workloads.flops import gpt_flops, mlp_flops
from zbench.workloads.models import GPT, MLP
from zbench.workloads.own import own_workload
from zbench.workloads.workload import Workload, derived_seed, drawn_by


def build_workload(spec: WorkloadSpec, *, seed: int, world_size: int, base_dir: Path) -> Workload:
    """Return the workload of a spec; for one spec, data and weights depend on `seed` only.

    base_dir: base of the relative path of a text file; `module:callable` is searched here first.
    UsageError for an unknown model, preset or option, and for a missing or too short text.
    """
    if ":" in spec.model:
        with drawn_by(derived_seed(seed, -2)):  # creating a module or dataset may draw random numbers
            return own_workload(spec, seed=seed, world_size=world_size, base_dir=base_dir)
    if spec.model not in ("gpt", "mlp"):
        raise UsageError(
            f"workload.model: expected gpt, mlp, hf:NAME_OR_PATH or module:callable, got {spec.model!r}"
        )
    for key, value in (("data.dataset", spec.data.dataset), ("loss", spec.loss)):
        if value:
            raise UsageError(f"workload.{key} is for a model of your own, not for {spec.model}; leave it out")
    if spec.model == "mlp" and spec.loss_chunks > 1:
        raise UsageError(
            "workload.loss_chunks is for the language models gpt and hf:, not for mlp; leave it out"
        )
    length, samples = spec.sequence_length, spec.micro_batch_size
    kind: type[nn.Module]
    shape: GptShape | MlpShape
    mode = spec.activation_checkpointing
    extra = dict[str, Any]()
    if spec.model == "gpt":
        kind = GPT
        shape = gpt_shape(spec.preset, spec.options)
        extra = {"loss_chunks": spec.loss_chunks}
        flops = gpt_flops(shape, sequence_length=length, tokens=samples * length)
    else:
        kind = MLP
        shape = mlp_shape(spec.preset, spec.options)
        if mode is True:  # by layer, with the activation before it
            mode = False
            extra = {"activation_checkpointing": True}
        flops = mlp_flops(shape, sequence_length=length, samples=samples)
    plain = partial(kind, **shape.model_dump(), sequence_length=length, **extra)
    data = token_data(spec, shape.vocabulary, base_dir)
    micros = spec.micro_batches_of(world_size)
    counts = (lambda _: flops, lambda _: samples * length)
    return Workload(lambda: checkpointed(plain(), mode), data, seed, world_size, samples, micros, *counts)
