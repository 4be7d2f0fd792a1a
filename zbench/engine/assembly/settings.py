"""EngineSpec keys that need no layout, each as the object that implements it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from zbench.engine.adam import cuda_unavailable_reason
from zbench.engine.optimizer.shard_optimizer import ParamGroup
from zbench.engine.partition import Layout
from zbench.engine.policies import (
    AccumulationPolicy,
    DynamicScaling,
    LossScaling,
    MicroSteps,
    MultiBackward,
    Unmanaged,
)
from zbench.errors import UsageError
from zbench.spec.combinations import engine_conflicts
from zbench.spec.engine import GPU_SIZES, SIZES, EngineSpec
from zbench.units import format_bytes

STANDALONE_THRESHOLD = 1 << 17  # elements from which a copy costs the CPU more than a collective of its own
GPU_BLOCK = 1 << 30  # elements: a block of a model of 70 billion has 0.86 of it
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check(spec: EngineSpec, device: torch.device) -> None:
    """Raise UsageError for keys that cannot be together, or not on this device."""
    for key, reason in engine_conflicts(spec):
        raise UsageError(f"{key.removeprefix('engine.')}: {reason}")
    if spec.compile == "inductor" and device.type == "cuda" and find_spec("triton") is None:
        raise UsageError(
            "compile: inductor writes a GPU's kernels in Triton, which is not installed; pip install triton,"
            " or set compile: aot_eager"
        )
    on_gpu = device.type == "cuda" and offload_ratio(spec) < 1.0
    if on_gpu and spec.optimizer.moments_rounding == "stochastic" and (why := cuda_unavailable_reason()):
        raise UsageError(
            f"moments_rounding: only zbench's own kernels round stochastically on a GPU ({why}); set"
            " moments_rounding: nearest"
        )


def accumulation(spec: EngineSpec) -> AccumulationPolicy:
    """Return the accumulation policy; UsageError for a step count that the mode does not count."""
    if spec.accumulation_mode == "micro_steps":
        return MicroSteps(spec.gradient_accumulation_steps)
    if spec.gradient_accumulation_steps != 1:
        raise UsageError(
            f"gradient_accumulation_steps: expected 1 with accumulation_mode: {spec.accumulation_mode}, got"
            f" {spec.gradient_accumulation_steps}; only micro_steps counts"
        )
    return MultiBackward() if spec.accumulation_mode == "multi_backward" else Unmanaged()


def scaling(spec: EngineSpec) -> LossScaling:
    """Return how the loss is scaled: dynamically in float16, else not."""
    if spec.dtype == "float16":
        return DynamicScaling(spec.initial_loss_scale, spec.loss_scale_window)
    return LossScaling()


def hyperparameters(spec: EngineSpec) -> ParamGroup:
    """Return the optimizer keys under torch's names, plus `bias_correction` and `decoupled`."""
    o = spec.optimizer
    values = o.model_dump(include={"lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad"})
    return {**values, "decoupled": o.name == "adamw"}


def overrides(spec: EngineSpec) -> dict[str, ParamGroup]:
    """Return name pattern -> overridden optimizer keys, in the order of the file."""
    return {p: group.model_dump(exclude_none=True) for p, group in spec.param_groups.items()}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Elements, as `spec` says or by default on a device of one type.

    reduction: of one bucket. prefetch: that are gathered ahead, in at least `groups_ahead` groups. block: up
    to which an entry of a module list is gathered whole, and reduced whole if no size is asked for.
    standalone: from which a replicated parameter has a group of its own.
    """

    reduction: int
    prefetch: int
    groups_ahead: int
    block: int
    standalone: float


def sizes_on(spec: EngineSpec, device_type: str) -> Sizes:
    """Return the sizes of an engine on a device of this type."""
    is_gpu = device_type == "cuda"
    defaults = GPU_SIZES if is_gpu else SIZES
    return Sizes(
        reduction=spec.reduce_bucket_size or defaults["reduce_bucket_size"],
        prefetch=spec.prefetch_bucket_size or defaults["prefetch_bucket_size"],
        groups_ahead=(1 if spec.prefetch_bucket_size else 2) if is_gpu else 0,
        block=GPU_BLOCK if is_gpu else 0,
        standalone=STANDALONE_THRESHOLD if device_type == "cpu" else math.inf,
    )


def check_blocks(layout: Layout, dtypes: Sequence[torch.dtype], limit: int | None) -> None:
    """Raise UsageError for a block that is larger than the memory that a rank may allocate."""
    for block in layout.buckets:
        size = dtypes[block.dtype_group].itemsize
        if limit is not None and block.length * size > limit:
            raise UsageError(
                f"reduce_bucket_size: expected blocks within a rank's memory limit of {format_bytes(limit)},"
                f" got one of {block.length} elements, {format_bytes(block.length * size)}; set"
                f" reduce_bucket_size: {max(limit // size // 8, 1)} or less, or raise the limit"
            )


def offload_ratio(spec: EngineSpec) -> float:
    """Return the share of the optimizer state that lives on the CPU."""
    return spec.offload_ratio if spec.offload_optimizer == "cpu" else 0.0
