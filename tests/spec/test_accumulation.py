"""How many backwards make a step, who divides by their number, and what is added first."""

import pytest

from zbench.spec.accumulation import Accumulation, accumulation
from zbench.spec.engine import EngineSpec
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
