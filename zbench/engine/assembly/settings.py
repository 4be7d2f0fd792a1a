"""EngineSpec keys that need no layout, each as the object that implements it."""

import math
from functools import partial
from importlib.util import find_spec

import torch

from zbench.engine.memory.kinds import Memories
from zbench.engine.optimizer.offload_costs import measure_offload_costs
from zbench.engine.optimizer.offload_ratio import MeasuredRatio, OffloadRatio
from zbench.engine.optimizer.shard_optimizer import ParamGroup
from zbench.engine.policies import (
    AccumulationPolicy,
    Clip,
    DynamicScaling,
    LossScaling,
    MicroSteps,
    MultiBackward,
    Unmanaged,
)
from zbench.engine.protocols import Collectives
from zbench.engine.speculative.threads import threads_for
from zbench.errors import UsageError
from zbench.spec.combinations import engine_conflicts
from zbench.spec.engine import EngineSpec

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


def clip(spec: EngineSpec) -> Clip:
    """Return how gradients are clipped."""
    return Clip(spec.gradient_clipping or math.inf)


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


def share(spec: EngineSpec, memories: Memories, parameters: int, comm: Collectives) -> OffloadRatio:
    """Return what decides the share of the optimizer state, of so many parameters, that is offloaded."""
    if spec.offload_optimizer == "none":
        return OffloadRatio(0.0)
    if spec.offload_ratio != "auto":
        return OffloadRatio(spec.offload_ratio)
    threads, device = torch.get_num_threads(), memories.local.device
    if spec.offload_schedule == "speculative":
        threads = threads_for(spec.optimizer_threads, device, alone=comm.world_size == 1).count
    dtype, moments = DTYPES[spec.dtype], DTYPES[spec.optimizer.moments_dtype]
    costs = partial(
        measure_offload_costs, parameters // comm.shards, memories.host, device, dtype, moments, threads
    )
    return MeasuredRatio(costs, torch.cuda.synchronize if device.type == "cuda" else lambda: None)
