"""Evaluations between steps: they happen when asked for, and change nothing that is trained."""

import pytest

from tests.worker.conftest import RunTrial, trial
from zbench.worker.job import reference_key

NEVER_EVALUATED = {
    "model": "tests.worker.failing_engines:NeverEvaluated",
    "sequence_length": 8,
    "micro_batch_size": 2,
}


@pytest.mark.parametrize("every", [None, 3, 5])
def test_the_model_is_evaluated_without_gradients_after_every_so_many_steps(
    run_trial: RunTrial, every: int | None
) -> None:
    run = {"warmup_steps": 1, "steps": 3, "evaluate_every": every}
    record = run_trial(trial(workload=NEVER_EVALUATED, run=run, verify="off"))
    evaluated = every == 3
    assert record.outcome == ("crashed" if evaluated else "ok")
    if evaluated:
        assert record.error is not None
        assert "evaluated, gradients: False" in record.error.message


def test_a_run_with_evaluations_has_the_bits_of_plain_training(run_trial: RunTrial) -> None:
    sharded = {"zero_stage": 3, "param_persistence_threshold": 0}
    record = run_trial(trial(sharded, run={"evaluate_every": 1}, verify="reference"))
    assert record.correctness.verdict == "identical", record.error


def test_what_is_kept_in_eval_mode_stays_in_it(run_trial: RunTrial) -> None:
    workload = NEVER_EVALUATED | {"model": "tests.worker.failing_engines:KeepsSomeInEvalMode"}
    record = run_trial(trial(workload=workload, run={"evaluate_every": 1}, verify="reference"))
    assert record.correctness.verdict == "identical", record.error


def test_evaluations_belong_to_a_trials_identity_and_not_to_its_reference() -> None:
    with_them, without = trial(run={"evaluate_every": 1}), trial()
    assert with_them.trial_id != without.trial_id
    assert reference_key(with_them) == reference_key(without)
