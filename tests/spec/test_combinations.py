from pathlib import Path
from typing import Any

import pytest

from tests.making import OTHER
from zbench.spec.combinations import DEPENDENCIES, Dependency, dependency_of, refusals
from zbench.spec.engine import EngineSpec
from zbench.spec.expand import conflict, expand
from zbench.spec.load import load_sweep
from zbench.spec.peers import peer_conflicts
from zbench.spec.run import RunSpec
from zbench.spec.workload import WorkloadSpec


def reason(
    workload: dict[str, Any] | None = None, run: dict[str, Any] | None = None, **engine: Any
) -> str | None:
    parts = EngineSpec.model_validate(engine), RunSpec.model_validate(run or {})
    broken = conflict(*parts, WorkloadSpec.model_validate(workload or {}))
    return None if broken is None else broken[1]


CANNOT_EXIST: list[tuple[dict[str, Any], str]] = [
    ({"rollback": "journal", "zero_stage": 1, "offload_optimizer": "cpu"}, "set offload_schedule: spec"),
    ({"compile": "inductor", "zero_stage": 1, "reduce_at": "each_backward"}, "set reduce_at: auto"),
    ({"accumulation_mode": "multi_backward", "gradient_accumulation_steps": 2}, "backwards_per_step"),
    ({"grad_accum_dtype": "float16"}, "set dtype: float16"),
    ({"param_groups": {"*": {"frozen": True}}}, "nothing to train"),
    ({"workload": {"backwards_per_step": 2}}, "multi_backward or unmanaged"),
    ({"run": {"world_size": 4}, "shard_group_size": 3, "zero_stage": 1}, "set a divisor of run.world_size"),
    ({"run": {"world_size": 4, "nodes": 3}}, "cannot be shared out evenly among 3 nodes"),
    ({"run": {"world_size": 2, "device": "cpu"}, "reduction": "backend"}, "set reduction: auto or"),
    ({"engine": "ddp", "workload": {"command": "train"}}, "brings its own engine; leave engine out"),
    ({"engine": "ddp", "build": "sharded"}, "set build: whole, or engine: builtin"),
    ({"ds_config": {}, "zero_stage": 1}, "set engine: deepspeed, or leave it out"),
]  # fmt: skip
CAN_EXIST: list[dict[str, Any]] = [
    {},
    {"zero_stage": 3, "offload_param": "cpu", "offload_optimizer": "cpu"},
    {"engine": "mine:build", "zero_stage": 2, "offload_optimizer": "cpu", "offload_ratio": 0.0},
    {"zero_stage": 1, "offload_optimizer": "cpu", "offload_schedule": "speculative", "rollback": "journal"},
    {"zero_stage": 1, "compile": "inductor", "offload_optimizer": "cpu", "gradient_accumulation_steps": 4},
    {"zero_stage": 3, "reduce_at": "each_backward", "build": "sharded"},
    {"accumulation_mode": "unmanaged", "workload": {"backwards_per_step": 4}},
    {"dtype": "float16", "communication_dtype": "float16"},
    {"run": {"world_size": 2, "device": "cuda"}, "reduction": "backend"},
]


@pytest.mark.parametrize(("parts", "remedy"), CANNOT_EXIST)
def test_an_impossible_combination_has_a_reason_and_a_remedy(parts: dict[str, Any], remedy: str) -> None:
    assert remedy in (reason(**parts) or "")


def test_a_transformers_model_that_cannot_be_built_is_invalid(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for name, text in (("new", '{"model_type": "qwen33"}'), ("old", "{}"), ("broken", "{,}")):
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "good.json").write_text('{"model_type": "qwen3"}')
    models = [f"hf:{name}.json" for name in ("good", "new", "old", "broken", "missing")]
    (tmp_path / "sweep.yaml").write_text(f"axes: {{workload.model: {models}}}\n")
    expansion = expand(load_sweep(tmp_path / "sweep.yaml", environ={}))
    assert [trial.workload.model for trial in expansion.trials] == ["hf:good.json"]
    reasons = [point.reason for point in expansion.invalid]
    assert "no architecture 'qwen33' (did you mean 'qwen3'?); install a newer one" in reasons[0]
    assert "has no model_type" in reasons[1]
    assert "broken.json:1" in reasons[2]
    assert "nothing is downloaded: fetch the model's config.json" in reasons[3]


@pytest.mark.parametrize("parts", CAN_EXIST)
def test_a_combination_that_can_exist_has_none(parts: dict[str, Any]) -> None:
    assert reason(**parts) is None


@pytest.mark.parametrize(
    ("engine", "remedy"),
    [
        ({"zero_stage": 2, "dtype": "float16"}, "set dtype: bfloat16 or float32"),
        ({"zero_stage": 2, "grad_accum_dtype": "bfloat16"}, "leave grad_accum_dtype out"),
        ({"zero_stage": 2, "dtype": "bfloat16", "grad_accum_dtype": "bfloat16"}, None),
    ],
)
def test_what_deepspeed_trains_without_a_verdict_is_refused(
    engine: dict[str, Any], remedy: str | None
) -> None:
    reasons = [why for key, why in peer_conflicts(EngineSpec.model_validate({"engine": "deepspeed"} | engine))
            if key != "engine.engine"]  # fmt: skip
    assert len(reasons) == (remedy is not None)
    assert all(remedy in why for why in reasons if remedy)


REFUSED = [one for one in DEPENDENCIES if one.refusal is not None]


def test_all_keys_without_effect_are_refused_and_no_defaults() -> None:
    for stage in (0, 1, 2, 3):
        assert list(refusals(EngineSpec.model_validate({"zero_stage": stage}))) == []
    assert dependency_of(("engine", "gradient_clipping")) is None
    spec = EngineSpec.model_validate({"offload_optimizer": "cpu", "offload_param": "cpu"})
    assert [key for key, _ in refusals(spec)] == ["engine.offload_param", "engine.offload_optimizer"]


@pytest.mark.parametrize("dependency", REFUSED, ids=lambda d: d.key[-1])
def test_an_idle_key_is_refused_with_both_ways_out(dependency: Dependency) -> None:
    assert dependency.refusal is not None
    section, _, key = ".".join(dependency.key[1:]).rpartition(".")
    value = OTHER[".".join(dependency.key[1:])]
    spec = EngineSpec.model_validate({section: {key: value}} if section else {key: value})
    assert list(refusals(spec)) == [(".".join(dependency.key), dependency.refusal)]
    assert f"{dependency.on[-1]}:" in dependency.refusal
    assert f"{dependency.key[-1]}:" in dependency.refusal
