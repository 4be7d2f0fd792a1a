"""Models and data of users: what can be repeated is verified, and what cannot says why.

Evaluations between steps happen when they are asked for, and change nothing that is trained.
"""

import re
from typing import Any

import pytest

from tests.verify.test_plain_training import UNEQUAL
from tests.worker.conftest import RunTrial, trial

HERE = "tests.worker.models:"
BUILTIN: dict[str, Any] = {"zero_stage": 2, "gradient_accumulation_steps": 2}
DDP = BUILTIN | {"engine": "ddp", "zero_stage": 0}
CASES = [(model, BUILTIN) for model in ("OldSpectral", "Counting", "Chancy")] + [("Running", DDP)]
FURTHER = [(model, BUILTIN) for model in ("Spectral", "Running", "WithBatches")] + [("Spectral", DDP)]
MARKED = BUILTIN | {"accumulation_mode": "multi_backward"}
IN_CHECK = pytest.mark.check


@pytest.mark.parametrize(
    ("model", "engine"), [*CASES, *(pytest.param(*case, marks=IN_CHECK) for case in FURTHER)]
)
def test_each_rank_keeps_state_of_its_own_and_draws_what_its_reference_draws(
    run_trial: RunTrial, model: str, engine: dict[str, Any]
) -> None:
    workload: dict[str, Any] = {"model": HERE + model, "micro_batch_size": 4}
    if model == "Chancy":
        workload["data"] = {"dataset": HERE + "Augmented"}
    record = run_trial(trial(engine, workload=workload))
    assert record.error is None
    assert record.correctness.verdict == "identical"


@pytest.mark.parametrize("engine", [BUILTIN, *(pytest.param(each, marks=IN_CHECK) for each in (DDP, MARKED))])
def test_unequal_micro_batches_are_weighted_for_engines_and_reference_alike(
    run_trial: RunTrial, engine: dict[str, Any]
) -> None:
    backwards = 2 if "accumulation_mode" in engine else 1
    engine = {**engine, "gradient_accumulation_steps": 2 // backwards}
    record = run_trial(trial(engine, workload={**UNEQUAL, "backwards_per_step": backwards}))
    assert record.error is None
    assert record.correctness.verdict == "identical"
    assert record.config["workload"]["loss_weighting"] == "tokens"


@pytest.mark.parametrize(
    ("model", "dtype", "reason"),
    [
        ("Teacher", "float32", r"its forward writes slow\.weight \(1 in all\)"),
        (
            "Unseeded",
            "bfloat16",
            r"two runs of the first step from the same seed differ \((loss|gradient norm) ",
        ),
    ],
)
def test_what_cannot_be_repeated_is_not_verified_and_the_reason_is_given(
    run_trial: RunTrial, model: str, dtype: str, reason: str
) -> None:
    record = run_trial(trial({"dtype": dtype}, workload={"model": HERE + model, "micro_batch_size": 4}))
    assert record.correctness.verdict == "unchecked"
    assert record.error.kind == "usage"
    assert re.search(reason, record.error.message)


# --- evaluations between steps

SMALL = {"sequence_length": 8, "micro_batch_size": 2}
NEVER_EVALUATED = SMALL | {"model": HERE + "NeverEvaluated"}
KEEPS_SOME = SMALL | {"model": HERE + "KeepsSomeInEvalMode"}


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
