"""EngineSpec: how the training step is computed. Keys and values are the sweep file's."""

from typing import Annotated, Literal

from pydantic import Field

from zbench.spec.base import ElementCount, SpecModel

Dtype = Literal["float32", "bfloat16", "float16"]


class OptimizerSpec(SpecModel):
    """Adam or AdamW and its hyperparameters; the update is torch's fused one, bit for bit."""

    name: Literal["adamw", "adam"] = "adamw"
    lr: Annotated[float, Field(ge=0)] = 1e-3
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    eps: Annotated[float, Field(ge=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    bias_correction: bool = True
    amsgrad: bool = False
    moments_dtype: Literal["float32", "bfloat16"] = "float32"
    moments_rounding: Literal["nearest", "stochastic"] = "nearest"


class ParamGroupSpec(SpecModel):
    """Overrides of optimizer keys for the parameters whose names match one pattern; `frozen` stops training them."""

    lr: Annotated[float, Field(ge=0)] | None = None
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] | None = None
    eps: Annotated[float, Field(ge=0)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    bias_correction: bool | None = None
    amsgrad: bool | None = None
    frozen: bool = False


class EngineSpec(SpecModel):
    """One engine configuration. Sizes are elements."""

    engine: str = "builtin"
    zero_stage: Literal[0, 1, 2, 3] = 0
    offload_optimizer: Literal["none", "cpu"] = "none"
    offload_param: Literal["none", "cpu"] = "none"
    offload_schedule: Literal["after_backward", "speculative"] = "after_backward"
    offload_ratio: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = 1.0
    optimizer_threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    rollback: Literal["double_buffer", "journal"] = "double_buffer"
    gradient_clipping: Annotated[float, Field(ge=0)] = 0.0
    gradient_accumulation_steps: Annotated[int, Field(ge=1)] = 1
    accumulation_mode: Literal["micro_steps", "multi_backward", "unmanaged"] = "micro_steps"
    reduce_at: Literal["auto", "boundary", "each_backward"] = "auto"
    reduce_bucket_size: ElementCount = 5_000_000
    allgather_bucket_size: ElementCount = 5_000_000
    sub_group_size: ElementCount = 10_000_000
    prefetch_bucket_size: ElementCount = 5_000_000
    param_persistence_threshold: Annotated[int, Field(ge=0)] = 10_000
    overlap_comm: bool = True
    dtype: Dtype = "float32"
    grad_accum_dtype: Dtype = "float32"
    communication_dtype: Dtype | None = None
    initial_loss_scale: Annotated[float, Field(gt=0)] = 65536.0
    loss_scale_window: Annotated[int, Field(ge=1)] = 1000
    compile: Literal["off", "aot_eager", "inductor"] = "off"
    optimizer: OptimizerSpec = OptimizerSpec()
    param_groups: dict[str, ParamGroupSpec] = {}
