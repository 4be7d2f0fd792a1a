"""Trial IDs never change: run directories, baselines and exports name trials by them."""

from typing import Any

import pytest

from tests.making import make_trial
from zbench.errors import SpecError
from zbench.spec.engine import EngineSpec
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.run import VerifySpec
from zbench.spec.trial import (
    Accumulation,
    accumulation,
    ranks_of_a_node,
    samples_per_step,
)
from zbench.spec.workload import WorkloadSpec

GOLDEN = ["3c2587bc56b3", "b0acccb67e53", "b09e5842bfa1", "db80561f6d5a"]


def test_trial_ids_are_what_they_were() -> None:
    sweep = sweep_from_mapping(
        {
            "name": "golden",
            "workload": {"model": "gpt", "preset": "nano", "micro_batch_size": 2},
            "run": {"world_size": 2, "repeats": 5, "timeout": "30s", "memory_limit": "2Gi"},
            "engine": {"gradient_clipping": 1.0, "optimizer": {"name": "adamw", "lr": 1e-3}},
            "axes": {"zero_stage": [0, 1, 2, 3]},
        },
        environ={},
    )
    assert [trial.trial_id for trial in expand(sweep).trials] == GOLDEN


@pytest.mark.parametrize(
    ("engine", "others", "is_other"),
    [
        ({"leaf_modules": (), "buffer_dtype": None, "optimizer": {"lr": 1e-3}}, {}, False),
        ({}, {"timeout": 3600.0, "repeats": 9}, False),
        ({"leaf_modules": ("Experts",)}, {}, True),
        ({"optimizer": {"lr": 1e-4}}, {}, True),
        ({}, {"workload": {"sequence_length": 64}}, True),
    ],
)
def test_keys_that_shape_no_result_count_for_no_identity(
    engine: dict[str, Any], others: dict[str, Any], is_other: bool
) -> None:
    plain = make_trial({"zero_stage": 3})
    assert (make_trial({"zero_stage": 3, **engine}, **others).trial_id != plain.trial_id) is is_other


def test_the_run_beside_a_command_differs_by_named_keys() -> None:
    engine = {"zero_stage": 2, "gradient_clipping": 1.0, "dtype": "bfloat16", "engine_python": "/other"}
    against = {"zero_stage": 1, "engine_python": None, "gradient_clipping": None, "reduce_bucket_size": 7}
    trial = make_trial(engine, workload={"command": "train"})
    held = trial.model_copy(update={"verify": VerifySpec(against=against)}).held_against()
    assert (held.engine.zero_stage, held.engine.reduce_bucket_size) == (1, 7)
    assert (held.engine.engine_python, held.engine.gradient_clipping) == (None, 0.0), "the defaults"
    assert held.engine.dtype == "bfloat16"
    assert held.verify.against is None
    assert trial.held_against() == trial


def accumulated(*, backwards_per_step: int = 1, **engine: object) -> Accumulation:
    workload = WorkloadSpec(backwards_per_step=backwards_per_step)
    return accumulation(EngineSpec.model_validate(engine), workload)


@pytest.mark.parametrize("mode", ["multi_backward", "unmanaged"])
def test_the_caller_averages_where_the_engine_does_not_count(mode: str) -> None:
    counted = accumulated(accumulation_mode=mode, backwards_per_step=4)
    assert (counted.backwards, counted.averaged_over, counted.loss_divisor) == (4, 1, 4)
    (trial,) = expanded({"micro_batch_size": 4}, engine={"accumulation_mode": mode}).trials
    assert (trial.engine.gradient_accumulation_steps, trial.workload.backwards_per_step) == (1, 2)


def expanded(workload: dict[str, Any], **changes: Any) -> Any:
    data = {"workload": {"global_batch_size": 16, **workload}, "run": {"world_size": 2}}
    return expand(sweep_from_mapping(data | changes, environ={}))


def test_accumulation_follows_the_micro_batch() -> None:
    expansion = expanded({}, axes={"micro_batch_size": [1, 2, 3, 4, 8]})
    assert [trial.engine.gradient_accumulation_steps for trial in expansion.trials] == [8, 4, 2, 1]
    (bad,) = expansion.invalid
    assert "16 is not a multiple of micro_batch_size x world_size (3 x 2 = 6)" in bad.reason
    counted = accumulation(expansion.trials[1].engine, expansion.trials[1].workload)
    assert (counted.backwards, counted.averaged_over, counted.loss_divisor) == (4, 4, 1)


def test_another_number_of_steps_is_refused() -> None:
    expansion = expanded({"micro_batch_size": 2}, axes={"gradient_accumulation_steps": [1, 2, 4]})
    assert {trial.engine.gradient_accumulation_steps for trial in expansion.trials} == {4}
    (bad,) = expansion.invalid
    assert "needs gradient_accumulation_steps: 4, got 2; leave" in bad.reason


@pytest.mark.parametrize(
    ("data", "sources"),
    [
        ({}, "neither"),
        ({"text": "a", "synthetic": True}, "both"),
    ],
)
def test_data_has_one_source(data: dict[str, Any], sources: str) -> None:
    ways = "`synthetic: true`, `dataset: MODULE:CALLABLE`" if "dataset" in data else "`synthetic: true`"
    with pytest.raises(SpecError, match=f"or {ways}, got {sources}; keep one"):
        expanded({"data": data})


def test_samples_and_the_fullest_node_count_all_ranks() -> None:
    uneven = make_trial({"gradient_accumulation_steps": 5}, workload={"micro_batch_size": 3}, world_size=7)
    assert samples_per_step(uneven) == 3 * 7 * 5
    nodes = uneven.run.model_copy(update={"nodes": 2})
    assert ranks_of_a_node(uneven.model_copy(update={"run": nodes})) == 4
    assert ranks_of_a_node(uneven) == 7
