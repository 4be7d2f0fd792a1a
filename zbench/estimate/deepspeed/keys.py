"""What the rules read of a DeepSpeed configuration, and the keys that no rule is for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zbench.errors import UsageError
from zbench.spec.foreign.deepspeed import DTYPES
from zbench.spec.foreign.reading import flat as flattened

_ZERO = "zero_optimization."
_PLAIN: dict[str, Any] = {
    "contiguous_gradients": True, "reduce_scatter": True, "use_multi_rank_bucket_allreduce": True,
    "round_robin_gradients": False, "parameter_alignment": False, "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False, "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False, "mics_shard_size": -1, "compute_grad_norm": True,
    "stage3_use_all_reduce_for_fetch_params": False, "stage3_allgather_sequential": False,
    "stage3_module_granularity_threshold": 0, "stage3_model_persistence_threshold": None,
    "offload_optimizer.super_offload": False, "offload_optimizer.ratio": 1.0,
}  # fmt: skip
"""Keys of zero_optimization, and the value that the rules are for."""
_OTHER_BLOCKS = ("torch_autocast.enabled", "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states",
                 "bf16.immediate_grad_update", "fp16.enabled", "compile.deepcompile")  # fmt: skip
DEVICES = ("none", "cpu")


@dataclass(frozen=True, slots=True)
class Keys:
    """What the rules read of a DeepSpeed configuration, with DeepSpeed's defaults (zero/config.py).

    Sizes are elements. accumulated, reduced: dtypes of accumulation and communication. updates_in_place: its
    Adam is DeepSpeed's own, which needs no temporaries.
    """

    stage: int
    dtype: torch.dtype
    accumulated: torch.dtype
    reduced: torch.dtype
    bucket: int
    overlap: bool
    offloads: bool
    offloads_parameters: bool
    sub_group: int
    prefetch: int
    threshold: int
    live: int
    reuse: int
    updates_in_place: bool

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Keys":
        """Read a configuration. UsageError for a key that would change the memory, and that no rule reads."""
        settings = flattened(document, "a DeepSpeed")
        zero = {key.removeprefix(_ZERO): value for key, value in settings.items() if key.startswith(_ZERO)}
        for key, value in zero.items():
            if value != _PLAIN.get(key, value) or key.startswith("zenflow"):
                raise UsageError(_refusal(f"{_ZERO}{key}", value))
            if key.endswith(".device") and value not in DEVICES:
                raise UsageError(_refusal(f"{_ZERO}{key}", value))
        for key in _OTHER_BLOCKS:
            if settings.get(key):
                raise UsageError(_refusal(key, settings[key]))
        kind = str(settings["optimizer.type"])
        if kind.lower() not in ("adam", "adamw"):
            raise UsageError(_refusal("optimizer.type", kind))
        stage = int(zero.get("stage", 0))
        dtype = "bf16" if settings.get("bf16.enabled") else "fp32"
        names = [
            settings.get(key) or dtype for key in ("data_types.grad_accum_dtype", "communication_data_type")
        ]
        accumulated, reduced = (getattr(torch, DTYPES.get(name, name)) for name in names)

        def size(key: str, default: float) -> int:
            return int(float(zero.get(key, default)))

        return cls(
            stage=stage,
            dtype=getattr(torch, DTYPES[dtype]),
            accumulated=accumulated,
            reduced=reduced,
            bucket=size("reduce_bucket_size", 5e8),
            overlap=bool(zero.get("overlap_comm", stage == 3)),
            offloads=zero.get("offload_optimizer.device", "none") != "none",
            offloads_parameters=stage == 3 and zero.get("offload_param.device", "none") != "none",
            sub_group=size("sub_group_size", 1e9),
            prefetch=size("stage3_prefetch_bucket_size", 5e7),
            threshold=size("stage3_param_persistence_threshold", 1e5),
            live=size("stage3_max_live_parameters", 1e9),
            reuse=size("stage3_max_reuse_distance", 1e9),
            updates_in_place=not settings.get("optimizer.params.torch_adam"),
        )

    @property
    def is_bf16_optimizer(self) -> bool:
        """engine.py, `_do_optimizer_sanity_check`: whether stage 1 is BF16_Optimizer."""
        return self.stage == 1 and self.dtype != self.accumulated and not self.offloads


def _refusal(key: str, value: object) -> str:
    return (
        f"engine.ds_config: {key}: {value} changes DeepSpeed's memory, and no rule of the estimate reads it;"
        " leave it out, or measure it with `zbench run`"
    )
