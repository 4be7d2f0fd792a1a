"""EngineSpec: the engine configuration, with the keys and values of the sweep file."""

from typing import Annotated, Any, Literal

from pydantic import Field

from zbench.spec.base import ElementCount, ElementThreshold, NotBoolean, SpecModel

Dtype = Literal["float32", "bfloat16", "float16"]
Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Beta, Beta], Field(strict=False)]  # a file can only write a list


SIZES = {
    "reduce_bucket_size": 5_000_000, "sub_group_size": 10_000_000, "prefetch_bucket_size": 2_500_000,
}  # fmt: skip
"""Elements if the key is missing and the device has no other default."""
GPU_SIZES = SIZES | {"reduce_bucket_size": 25_000_000, "prefetch_bucket_size": 5_000_000}

ALONE_KEYS = (
    "dtype", "optimizer", "param_groups", "gradient_clipping", "gradient_accumulation_steps",
    "accumulation_mode",
)  # fmt: skip
"""Keys of a configuration that the yardstick `alone` (plain PyTorch without communication) uses, too."""


class OptimizerSpec(SpecModel):
    """Adam or AdamW; with options that torch has, the update equals torch's fused one bit for bit."""

    name: Literal["adamw", "adam"] = Field(
        "adamw", description="`adamw` decays weights directly; `adam` adds the decay to the gradient."
    )
    lr: float = Field(1e-3, ge=0, description="Learning rate.")
    betas: Betas = Field((0.9, 0.999), description="Decay rates of the two moments, each in [0, 1).")
    eps: float = Field(1e-8, ge=0, description="Added to the square root of the second moment.")
    weight_decay: float = Field(0.01, ge=0, description="Weight decay; 0 is none.")
    bias_correction: bool = Field(True, description="Divide the moments by 1 - beta^step.")
    amsgrad: bool = Field(False, description="Use the largest second moment seen so far.")
    moments_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Storage dtype of the two moments."
    )
    moments_rounding: Literal["nearest", "stochastic"] = Field(
        "nearest", description="How bfloat16 moments are rounded."
    )


class ParamGroupSpec(SpecModel):
    """Overrides of optimizer keys for parameters whose names match a pattern; a missing key is inherited."""

    lr: Annotated[float, Field(ge=0)] | None = Field(None, description="Learning rate of this group.")
    betas: Betas | None = Field(None, description="Decay rates of the moments of this group.")
    eps: Annotated[float, Field(ge=0)] | None = Field(None, description="Epsilon of this group.")
    weight_decay: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Weight decay of this group."
    )
    bias_correction: bool | None = Field(None, description="Bias correction of this group.")
    amsgrad: bool | None = Field(None, description="AMSGrad in this group.")
    frozen: bool = Field(False, description="Do not train these parameters.")


class EngineSpec(SpecModel):
    """One engine configuration. Sizes are elements."""

    engine: str = Field(
        "builtin", description="`builtin`, a peer (`ddp`, `fsdp2`, ...), a plug-in or module:callable."
    )
    engine_python: str | None = Field(
        None, min_length=1, description="Interpreter or environment of the ranks, relative to the sweep file."
    )
    ds_config: Annotated[str, Field(min_length=1)] | dict[str, Any] | None = Field(
        None, description="Your own DeepSpeed configuration: a file or a mapping (`engine: deepspeed`)."
    )
    zero_stage: Annotated[Literal[0, 1, 2, 3], NotBoolean] = Field(
        0, description="What ranks shard: 0 nothing, 1 moments, 2 gradients too, 3 parameters too."
    )
    shard_group_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Ranks that share one set of shards (HSDP, MiCS); missing: all."
    )
    offload_optimizer: Literal["none", "cpu"] = Field(
        "none", description="Memory of master weights and moments, where Adam runs."
    )
    offload_param: Literal["none", "cpu"] = Field(
        "none", description="Memory of sharded parameters between uses (stage 3)."
    )
    offload_schedule: Literal["after_backward", "speculative"] = Field(
        "after_backward", description="When the CPU optimizer runs: after or during backward (SuperOffload)."
    )
    offload_ratio: float = Field(
        1.0, ge=0, le=1, description="Fraction of the optimizer state in host memory, 0 to 1."
    )
    optimizer_threads: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Threads of a rank's CPU optimizer. Missing: its share of the free cores."
    )
    rollback: Literal["double_buffer", "journal"] = Field(
        "double_buffer", description="How speculation undoes an update: from a second copy or from a journal."
    )
    gradient_clipping: float = Field(0.0, ge=0, description="Largest global gradient norm; 0: no clipping.")
    gradient_accumulation_steps: int = Field(1, ge=1, description="Micro-batches in one optimizer step.")
    accumulation_mode: Literal["micro_steps", "multi_backward", "unmanaged"] = Field(
        "micro_steps", description="How the engine knows the last backward: by count, by mark, or at step()."
    )
    reduce_at: Literal["auto", "boundary", "each_backward"] = Field(
        "auto", description="When gradients are reduced; auto: boundary at stages 0 and 1, else backward."
    )
    reduce_bucket_size: ElementCount | None = Field(
        None,
        description="Most elements in one gradient reduction. Missing: 5M; GPU: 25M, at stage 3 a block.",
    )
    allgather_bucket_size: ElementCount | None = Field(
        None, description="Elements in one parameter all-gather. Missing: those of a reduction."
    )
    sub_group_size: ElementCount | None = Field(
        None, description="Elements that one Adam call updates. Missing: 10M; all if all state is on the GPU."
    )
    prefetch_bucket_size: ElementCount | None = Field(
        None,
        description="Elements gathered ahead of their use (stage 3). Missing: 2.5M, on a GPU two groups.",
    )
    param_persistence_threshold: ElementThreshold = Field(
        10_000, description="Parameters of at most this many elements stay gathered (stage 3)."
    )
    leaf_modules: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="Names or classes of modules to gather whole, such as experts (stage 3)."
    )
    reduction: Literal["auto", "backend", "rank_order"] = Field(
        "auto",
        description="Who adds the ranks' gradients: NCCL, or zbench in rank order. auto: NCCL if there.",
    )
    overlap_comm: bool = Field(True, description="Reduce gradients during backward.")
    build: Literal["auto", "whole", "sharded"] = Field(
        "auto",
        description="Build the model whole, or each module in shards; auto: shards if state is sharded.",
    )
    dtype: Dtype = Field("float32", description="Dtype of the model's computation.")
    grad_accum_dtype: Dtype = Field("float32", description="Dtype of gradient accumulation.")
    communication_dtype: Dtype | None = Field(
        None, description="Dtype of gradient reduction. Missing: that of accumulation."
    )
    buffer_dtype: Literal["float32"] | None = Field(
        None, description="Dtype of the model's float32 buffers. Missing: `dtype`."
    )
    initial_loss_scale: float = Field(65536.0, gt=0, description="Initial loss scale (float16).")
    loss_scale_window: int = Field(
        1000, ge=1, description="The loss scale doubles after this many steps without overflow (float16)."
    )
    compile: Literal["off", "aot_eager", "inductor"] = Field(
        "off", description="Compile the step, with reductions in the backward graph (stage 1)."
    )
    optimizer: OptimizerSpec = Field(OptimizerSpec(), description="Adam and its hyperparameters.")
    param_groups: dict[str, ParamGroupSpec] = Field(
        {}, description="Parameter-name pattern -> overrides of optimizer keys, or `frozen: true`."
    )
