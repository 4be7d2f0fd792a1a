"""Every key of an engine with a value to try: what is claimed of keys is shown of each of them."""

from typing import Any

OTHER: dict[str, Any] = {
    "zero_stage": 2, "offload_optimizer": "cpu", "offload_param": "cpu", "offload_schedule": "speculative",
    "offload_ratio": 0.5, "optimizer_threads": 3, "rollback": "journal", "gradient_clipping": 0.25,
    "gradient_accumulation_steps": 3, "accumulation_mode": "unmanaged", "reduce_at": "boundary",
    "reduce_bucket_size": 7, "allgather_bucket_size": 7, "sub_group_size": 7, "prefetch_bucket_size": 7,
    "param_persistence_threshold": 7, "leaf_modules": ["Experts"], "overlap_comm": False,
    "dtype": "bfloat16", "grad_accum_dtype": "bfloat16", "communication_dtype": "bfloat16",
    "buffer_dtype": "float32", "initial_loss_scale": 256.0, "loss_scale_window": 7, "compile": "inductor",
    "reduction": "rank_order", "shard_group_size": 2, "param_groups": {"*.bias": {"weight_decay": 0.5}},
    "build": "sharded",
    "ds_config": {"wall_clock_breakdown": True},
    **{f"optimizer.{key}": value for key, value in {
        "name": "adam", "lr": 0.5, "betas": [0.5, 0.6], "eps": 0.5, "weight_decay": 0.5, "amsgrad": True,
        "bias_correction": False, "moments_dtype": "bfloat16", "moments_rounding": "stochastic",
    }.items()},
}  # fmt: skip
"""Every key of the engine with a value that is not its default."""

NEEDED: dict[str, dict[str, Any]] = {
    "reduce_at": {"zero_stage": 3},
    "offload_param": {"offload_optimizer": "cpu"},
    "offload_schedule": {"zero_stage": 2, "offload_optimizer": "cpu"},
    "offload_ratio": {"offload_optimizer": "cpu"},
    "optimizer_threads": {"offload_optimizer": "cpu"},
    "rollback": {"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"},
    "grad_accum_dtype": {"dtype": "bfloat16"},
    "buffer_dtype": {"dtype": "bfloat16"},
    "initial_loss_scale": {"dtype": "float16"},
    "loss_scale_window": {"dtype": "float16"},
    "compile": {"zero_stage": 1},
    "ds_config": {"engine": "deepspeed"},
    "optimizer.moments_rounding": {"optimizer.moments_dtype": "bfloat16"},
}
"""What else is set where a key means something with it only."""
