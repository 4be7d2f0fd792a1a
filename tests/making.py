"""Trials and records for tests, with ordinary values where a test does not care; every key of an engine."""

from typing import Any

from zbench.record.record import Correctness, MemoryPeaks, Record, Timing, VerdictName
from zbench.spec.trial import TrialSpec


def make_trial(
    engine: dict[str, Any] | None = None,
    *,
    workload: dict[str, Any] | None = None,
    verify: str = "full",
    **run: Any,
) -> TrialSpec:
    """Return a trial; further keywords are keys of `run`."""
    return TrialSpec.model_validate(
        {"workload": workload or {}, "run": run, "engine": engine or {}, "verify": {"mode": verify}}
    )


def make_record(
    trial_id: str = "aaaaaaaaaaaa",
    repeat: int = 0,
    rate: float = 100.0,
    *,
    verdict: VerdictName = "identical",
    peak: int = 100,
    **changes: Any,
) -> Record:
    """Return an `ok` record of `rate` tokens a second; further keywords replace fields."""
    fields: dict[str, Any] = {
        "run_id": "run",
        "trial_id": trial_id,
        "repeat": repeat,
        "axes": {"zero_stage": 1},
        "config": {"run": {"world_size": 2}},
        "outcome": "ok",
        "timing": Timing([1 / rate], 1 / rate, rate, rate),
        "memory": MemoryPeaks(peak, 0, 5000),
        "correctness": Correctness(verdict, 1.0),
    }
    return Record(**(fields | changes))


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
