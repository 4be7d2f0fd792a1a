"""A model or dataset that draws from Python's `random` or NumPy trains the same in every process."""

from typing import Any

import pytest

from tests.worker.conftest import RunTrial, trial

HERE = "tests.worker.chancy_models"
WORKLOADS: dict[str, dict[str, Any]] = {
    "own_batches": {"model": f"{HERE}:WithBatches"},
    "dataset": {"model": f"{HERE}:Chancy", "data": {"dataset": f"{HERE}:Augmented"}},
}


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_what_draws_from_python_and_numpy_is_verified_as_any_other(
    run_trial: RunTrial, workload: dict[str, Any]
) -> None:
    engine = {"zero_stage": 2, "gradient_accumulation_steps": 2}
    record = run_trial(trial(engine, workload={**workload, "micro_batch_size": 4}))
    assert record.error is None
    assert record.correctness.verdict == "identical"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_nobody_can_seed_is_not_verified_and_the_reason_is_said(run_trial: RunTrial, dtype: str) -> None:
    workload = {"model": f"{HERE}:Unseeded", "micro_batch_size": 4}
    record = run_trial(trial({"dtype": dtype}, workload=workload))
    assert record.correctness.verdict == "unchecked"
    assert record.error is not None
    assert record.error.kind == "usage"
    assert "two runs of the first step from the same seed differ (loss " in record.error.message
