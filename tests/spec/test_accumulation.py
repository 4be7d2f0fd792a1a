"""How many backwards make a step, who divides by their number, and what follows from a global batch."""

from typing import Any

import pytest

from zbench.errors import SpecError
from zbench.spec.accumulation import Accumulation, accumulation
from zbench.spec.engine import EngineSpec
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.trial import InvalidTrial, TrialSpec
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


def test_counted_micro_batches_are_averaged_by_the_engine() -> None:
    counted = found(gradient_accumulation_steps=4)
    assert (counted.backwards, counted.averaged_over, counted.loss_divisor) == (4, 4, 1)


@pytest.mark.parametrize("mode", ["multi_backward", "unmanaged"])
def test_the_caller_averages_where_the_engine_does_not_count(mode: str) -> None:
    told = found(accumulation_mode=mode, backwards_per_step=4)
    assert (told.backwards, told.averaged_over, told.loss_divisor) == (4, 1, 4)


def trials(**changes: Any) -> list[TrialSpec]:
    return expanded(**changes).trials


def expanded(workload: dict[str, Any], **changes: Any) -> Any:
    data = {
        "name": "x",
        "workload": {"global_batch_size": 16, **workload},
        "run": {"world_size": 2},
    } | changes
    return expand(sweep_from_mapping(data, environ={}))


def test_accumulation_follows_the_micro_batch() -> None:
    found = trials(workload={}, axes={"micro_batch_size": [1, 2, 4, 8]})
    assert [t.engine.gradient_accumulation_steps for t in found] == [8, 4, 2, 1]


@pytest.mark.parametrize("mode", ["multi_backward", "unmanaged"])
def test_where_the_engine_does_not_count_the_caller_does(mode: str) -> None:
    (found,) = trials(workload={"micro_batch_size": 4}, engine={"accumulation_mode": mode})
    assert (found.engine.gradient_accumulation_steps, found.workload.backwards_per_step) == (1, 2)


def test_what_does_not_fit_is_invalid_and_the_rest_runs() -> None:
    found = expanded(workload={}, axes={"micro_batch_size": [3, 4]})
    assert [t.workload.micro_batch_size for t in found.trials] == [4]
    (bad,) = found.invalid
    assert isinstance(bad, InvalidTrial)
    assert "16 is no multiple of micro_batch_size x world_size (3 x 2 = 6)" in bad.reason


def test_another_number_of_steps_is_refused() -> None:
    axes = {"gradient_accumulation_steps": [1, 2, 4]}
    found = expanded(workload={"micro_batch_size": 2}, axes=axes)
    assert {t.engine.gradient_accumulation_steps for t in found.trials} == {4}
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
        trials(workload={"data": data})
