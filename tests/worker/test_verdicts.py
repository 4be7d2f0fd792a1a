"""Whole trials in real processes: the engine is identical, honest others equivalent, broken ones found
out."""

from typing import Any

import pytest

from tests.worker.conftest import DEVICES, RunTrial, trial
from tests.worker.engines import FIRST_WRONG_STEP

DEEP = {"layers": 6, "width": 64, "heads": 4}
GPT: dict[str, Any] = {"model": "gpt", "options": DEEP, "sequence_length": 32}
OFFLOADED = {"offload_optimizer": "cpu", "offload_param": "cpu"}
SPECULATIVE = {"offload_optimizer": "cpu", "offload_schedule": "speculative"}
GROUPS = {"param_groups": {"*.bias": {"frozen": True}, "layers.1.*": {"weight_decay": 0.0}}}
SMALL_BUCKETS = {"reduce_bucket_size": 3000}
IN_CHECK = pytest.mark.check
BROKEN = "tests.worker.engines:"
DROPS = "tests.worker.wrong_engines:DropsMicroBatch"
HONEST = "tests.worker.engines:OtherOrder"


@pytest.mark.parametrize(
    ("stage", "world_size"),
    [(2, 3), (3, 2), *(pytest.param(*pair, marks=IN_CHECK) for pair in ((0, 3), (1, 1), (1, 2)))],
)
def test_every_stage_and_world_size_is_identical(run_trial: RunTrial, stage: int, world_size: int) -> None:
    engine = {"zero_stage": stage, "gradient_clipping": 0.5, "gradient_accumulation_steps": 2}
    record = run_trial(trial(engine, run={"world_size": world_size, "steps": 2}))
    assert record.error is None
    result = record.correctness
    assert (result.verdict, result.error_ratio, result.loss_max_abs_diff) == ("identical", 1.0, 0.0)
    assert result.grad_norm_max_abs_diff == 0.0
    assert [one.term for one in result.coefficients] == ["gradient"], "nothing is replayed"


@pytest.mark.parametrize(
    "engine",
    [
        {"zero_stage": 1, "optimizer": {"name": "adam", "amsgrad": True, "bias_correction": False}} | GROUPS,
        {"zero_stage": 2, "grad_accum_dtype": "bfloat16", "gradient_accumulation_steps": 2} | SMALL_BUCKETS,
        {"zero_stage": 2, "dtype": "float16", "initial_loss_scale": 2.0**22},
        pytest.param({"zero_stage": 1, "offload_optimizer": "cpu", "dtype": "bfloat16"}, marks=IN_CHECK),
        pytest.param({"zero_stage": 2, "gradient_clipping": 0.5} | SPECULATIVE, marks=IN_CHECK),
        pytest.param({"zero_stage": 3, "gradient_clipping": 0.5} | OFFLOADED, marks=IN_CHECK),
    ],
)
def test_what_shapes_the_reference_is_mirrored_by_it(run_trial: RunTrial, engine: dict[str, Any]) -> None:
    assert run_trial(trial(engine)).correctness.verdict == "identical"


@pytest.mark.parametrize("mode", ["multi_backward", pytest.param("unmanaged", marks=IN_CHECK)])
def test_modes_that_do_not_count_train_on_the_mean_too(run_trial: RunTrial, mode: str) -> None:
    workload = {"model": "mlp", "options": {"hidden": 64}, "sequence_length": 32, "backwards_per_step": 3}
    record = run_trial(trial({"zero_stage": 2, "accumulation_mode": mode}, workload=workload))
    assert record.correctness.verdict == "identical"


@DEVICES
@pytest.mark.parametrize(
    ("dtype", "workload"), [("float32", None), pytest.param("bfloat16", GPT, marks=IN_CHECK)]
)
def test_an_honest_engine_that_rounds_otherwise_is_equivalent(
    run_trial: RunTrial, dtype: str, workload: dict[str, Any] | None, device: str
) -> None:
    engine = {"engine": HONEST, "dtype": dtype, "gradient_accumulation_steps": 3, "gradient_clipping": 1.0}
    result = run_trial(trial(engine, workload=workload, run={"steps": 1, "device": device})).correctness
    assert result.verdict == "equivalent"
    assert result.first_differing_step == 1


def test_ranks_of_two_shard_groups_show_the_same_runs(run_trial: RunTrial) -> None:
    engine = {"zero_stage": 3, "shard_group_size": 2, "dtype": "bfloat16"}
    record = run_trial(trial(engine, run={"world_size": 4, "steps": 2}))
    assert (record.error, record.correctness.verdict, record.correctness.not_checked) == (
        None,
        "identical",
        [],
    )


def test_a_fault_is_wrong_from_its_step_and_its_parameter_named(run_trial: RunTrial) -> None:
    engine = {"engine": BROKEN + "updates_shard_twice", "zero_stage": 2, "sub_group_size": 1024}
    result = run_trial(trial(engine)).correctness
    assert (result.verdict, result.first_differing_step) == ("wrong", FIRST_WRONG_STEP)
    assert result.worst_parameter in {"layers.2.bias", "layers.2.weight"}, (
        "the first subgroup in backward order"
    )
    assert result.error_ratio is not None
    assert result.error_ratio > 100


@pytest.mark.check
def test_a_fault_is_seen_at_depth_in_bfloat16(run_trial: RunTrial) -> None:
    engine = {"engine": BROKEN + "updates_shard_twice", "zero_stage": 1, "dtype": "bfloat16"}
    result = run_trial(trial(engine, workload=GPT, run={"steps": 1})).correctness
    assert result.verdict in ("drifted", "wrong")
    assert result.first_differing_step == FIRST_WRONG_STEP


def test_ranks_that_disagree_are_judged_by_the_gravest(run_trial: RunTrial) -> None:
    record = run_trial(trial({"engine": BROKEN + "StraysOnOneRank"}))
    assert record.correctness.verdict in ("drifted", "wrong")
    assert any(f"ranks have different parameters since step {FIRST_WRONG_STEP}" in w for w in record.warnings)


def test_a_dropped_micro_batch_is_found_without_the_truth(run_trial: RunTrial) -> None:
    engine = {"engine": DROPS, "gradient_accumulation_steps": 2}
    result = run_trial(trial(engine, verify="reference")).correctness
    assert (result.verdict, result.error_ratio) == ("wrong", None)
