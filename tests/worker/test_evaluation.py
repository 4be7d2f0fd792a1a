"""Evaluations between steps: they happen when asked for, and change nothing that is trained."""

import pytest

from tests.worker.conftest import RunTrial, trial

SMALL = {"sequence_length": 8, "micro_batch_size": 2}
NEVER_EVALUATED = SMALL | {"model": "tests.worker.models:NeverEvaluated"}
KEEPS_SOME = SMALL | {"model": "tests.worker.models:KeepsSomeInEvalMode"}


@pytest.mark.parametrize("every", [3, 5])
def test_the_model_is_evaluated_without_gradients_after_every_so_many_steps(
    run_trial: RunTrial, every: int
) -> None:
    run = {"warmup_steps": 1, "steps": 3, "evaluate_every": every}
    record = run_trial(trial(workload=NEVER_EVALUATED, run=run, verify="off"))
    evaluated = every == 3
    assert record.outcome == ("crashed" if evaluated else "ok")
    if evaluated:
        assert "evaluated, gradients: False" in record.error.message


def test_a_run_with_evaluations_has_the_bits_of_plain_training(run_trial: RunTrial) -> None:
    sharded = {"zero_stage": 3, "param_persistence_threshold": 0}
    record = run_trial(trial(sharded, workload=KEEPS_SOME, run={"evaluate_every": 1}, verify="reference"))
    assert record.correctness.verdict == "identical", record.error
