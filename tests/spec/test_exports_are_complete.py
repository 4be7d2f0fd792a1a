"""Whatever key a sweep sets, each export differs by it or names it: nothing is left out unsaid."""

import json
from typing import Any

import pytest

from zbench.spec.combinations import conflict
from zbench.spec.dependencies import acts
from zbench.spec.engine import EngineSpec, OptimizerSpec
from zbench.spec.targets import TARGETS
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import WorkloadSpec

OTHER: dict[str, Any] = {
    "zero_stage": 2, "offload_optimizer": "cpu", "offload_param": "cpu", "offload_schedule": "speculative",
    "offload_ratio": 0.5, "optimizer_threads": 3, "rollback": "journal", "gradient_clipping": 0.25,
    "gradient_accumulation_steps": 3, "accumulation_mode": "unmanaged", "reduce_at": "boundary",
    "reduce_bucket_size": 7, "allgather_bucket_size": 7, "sub_group_size": 7, "prefetch_bucket_size": 7,
    "param_persistence_threshold": 7, "leaf_modules": ["Experts"], "overlap_comm": False,
    "dtype": "bfloat16", "grad_accum_dtype": "bfloat16", "communication_dtype": "bfloat16",
    "buffer_dtype": "float32", "initial_loss_scale": 256.0, "loss_scale_window": 7, "compile": "inductor",
    "shard_group_size": 2, "param_groups": {"*.bias": {"weight_decay": 0.5}},
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

NOT_THE_ENGINES = {"engine", "engine_python"}
"""Keys that say who trains: an export is for another."""

WORKLOAD = {"micro_batch_size": 7, "backwards_per_step": 3, "activation_checkpointing": True}


BASES: dict[str, dict[str, Any]] = {
    "stage 3": {"zero_stage": 3}, "stage 0": {"zero_stage": 0}, "fsdp2": {"engine": "fsdp2", "zero_stage": 3},
}  # fmt: skip


def trial(engine: dict[str, Any], workload: dict[str, Any]) -> TrialSpec:
    written = {key: value for key, value in engine.items() if "." not in key}
    written["optimizer"] = {key.partition(".")[2]: value for key, value in engine.items() if "." in key}
    run = {"world_size": 4, "device": "cuda"}
    return TrialSpec.model_validate({"engine": written, "workload": workload, "run": run, "axes": {}})


def exported(target: str, engine: dict[str, Any], **workload: Any) -> str:
    """Return text and notes, without the trial's ID."""
    made = trial(engine, workload)
    found = TARGETS[target](made)
    return json.dumps([found.text, found.notes]).replace(made.trial_id, "ID")


def test_every_key_has_a_value_to_try() -> None:
    keys = {key.partition(".")[0] for key in OTHER}
    assert keys == EngineSpec.model_fields.keys() - NOT_THE_ENGINES
    assert {key.partition(".")[2] for key in OTHER if "." in key} == OptimizerSpec.model_fields.keys()
    assert WORKLOAD.keys() < WorkloadSpec.model_fields.keys()


def is_legal(engine: dict[str, Any]) -> bool:
    made = trial(engine, {})
    found = conflict(made.engine, made.run, made.workload)
    return found is None or "is not installed" in found[1]


@pytest.mark.parametrize("key", OTHER)
def test_a_key_changes_an_export_or_is_named(key: str) -> None:
    tried = 0
    for base in BASES.values():
        before = base | NEEDED.get(key, {})
        after = before | {key: OTHER[key]}
        if (
            before != after
            and is_legal(before)
            and is_legal(after)
            and acts(trial(after, {}).engine, ("engine", *key.split(".")))
        ):
            tried += 1
            for target in TARGETS:
                assert exported(target, after) != exported(target, before), (target, before)
    assert tried, "no base takes the key"


@pytest.mark.parametrize("key", WORKLOAD)
@pytest.mark.parametrize("target", TARGETS)
def test_what_the_workload_sets_changes_an_export_or_is_named(target: str, key: str) -> None:
    for base in BASES.values():
        assert exported(target, base, **{key: WORKLOAD[key]}) != exported(target, base), base
