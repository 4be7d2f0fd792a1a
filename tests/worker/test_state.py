"""A rank's forward sees the buffers and counters of that rank alone, in the reference as in an engine."""

from typing import Any

import pytest

from tests.worker.conftest import RunTrial, trial

ENGINES: list[dict[str, Any]] = [{"zero_stage": 2}, {"engine": "ddp", "zero_stage": 0}]


@pytest.mark.parametrize("engine", ENGINES, ids=["builtin", "ddp"])
@pytest.mark.parametrize("model", ["Spectral", "OldSpectral", "Running", "Counting"])
def test_each_rank_keeps_state_of_its_own(run_trial: RunTrial, model: str, engine: dict[str, Any]) -> None:
    workload = {"model": f"tests.worker.stateful_models:{model}", "micro_batch_size": 4}
    record = run_trial(trial(engine | {"gradient_accumulation_steps": 2}, workload=workload))
    assert record.error is None
    assert record.correctness.verdict == "identical"


@pytest.mark.parametrize(("model", "written"), [("Teacher", "slow.weight"), ("Clipped", "head.weight")])
def test_a_forward_that_writes_weights_is_not_verified(run_trial: RunTrial, model: str, written: str) -> None:
    workload = {"model": f"tests.worker.stateful_models:{model}", "micro_batch_size": 4}
    record = run_trial(trial(workload=workload))
    assert record.correctness.verdict == "unchecked"
    assert record.error is not None
    assert f"its forward writes {written} (1 in all)" in record.error.message
