"""How many backwards make a step, who divides by their number, and what follows from a global batch."""

from typing import Any

import pytest

from zbench.errors import SpecError
from zbench.spec.engine import EngineSpec
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.trial import Accumulation, accumulation
from zbench.spec.workload import WorkloadSpec


def found(*, backwards_per_step: int = 1, **engine: object) -> Accumulation:
    workload = WorkloadSpec(backwards_per_step=backwards_per_step)
    return accumulation(EngineSpec.model_validate(engine), workload)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sharded_gradients_are_reduced_at_each_backward_unless_told_otherwise(stage: int) -> None:
    assert found(zero_stage=stage, gradient_accumulation_steps=2).each_backward is (stage >= 2)
    offloaded = found(zero_stage=max(stage, 1), gradient_accumulation_steps=2, offload_optimizer="cpu")
    assert offloaded.each_backward is (stage >= 2), "offload changes no bit"
    for reduce_at in ("boundary", "each_backward"):
        told = found(zero_stage=stage, gradient_accumulation_steps=2, reduce_at=reduce_at)
        assert told.each_backward is (reduce_at == "each_backward")


@pytest.mark.parametrize("reduce_at", ["auto", "boundary", "each_backward"])
def test_one_backward_has_one_order(reduce_at: str) -> None:
    assert found(zero_stage=3, reduce_at=reduce_at) == Accumulation(1, 1, each_backward=False)


@pytest.mark.parametrize("mode", ["multi_backward", "unmanaged"])
def test_the_caller_averages_where_the_engine_does_not_count(mode: str) -> None:
    told = found(accumulation_mode=mode, backwards_per_step=4)
    assert (told.backwards, told.averaged_over, told.loss_divisor) == (4, 1, 4)
    (trial,) = expanded({"micro_batch_size": 4}, engine={"accumulation_mode": mode}).trials
    assert (trial.engine.gradient_accumulation_steps, trial.workload.backwards_per_step) == (1, 2)


def expanded(workload: dict[str, Any], **changes: Any) -> Any:
    data = {"workload": {"global_batch_size": 16, **workload}, "run": {"world_size": 2}}
    return expand(sweep_from_mapping(data | changes, environ={}))


def test_accumulation_follows_the_micro_batch_and_what_does_not_fit_is_invalid() -> None:
    found = expanded({}, axes={"micro_batch_size": [1, 2, 3, 4, 8]})
    assert [trial.engine.gradient_accumulation_steps for trial in found.trials] == [8, 4, 2, 1]
    (bad,) = found.invalid
    assert "16 is no multiple of micro_batch_size x world_size (3 x 2 = 6)" in bad.reason
    counted = accumulation(found.trials[1].engine, found.trials[1].workload)
    assert (counted.backwards, counted.averaged_over, counted.loss_divisor) == (4, 4, 1)


def test_another_number_of_steps_is_refused() -> None:
    found = expanded({"micro_batch_size": 2}, axes={"gradient_accumulation_steps": [1, 2, 4]})
    assert {trial.engine.gradient_accumulation_steps for trial in found.trials} == {4}
    (bad,) = found.invalid
    assert "takes gradient_accumulation_steps: 4, got 2; leave" in bad.reason


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({}, "neither"),
        ({"text": "a", "synthetic": True}, "both"),
        ({"dataset": "m:f", "synthetic": True}, "both"),
        ({"dataset": "m:f", "synthetic": True, "text": "a"}, "all"),
    ],
)
def test_data_has_one_source(data: dict[str, Any], found: str) -> None:
    with pytest.raises(SpecError, match=f"got {found}; keep one"):
        expanded({"data": data})
