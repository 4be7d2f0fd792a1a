"""A fault of any step is found and named, also where the step is not replayed."""

import re

import pytest

from tests.worker.conftest import RunTrial, trial
from tests.worker.test_wrong_engines import GPT

HERE = "tests.worker.wrong_engines:"
RUN = {"warmup_steps": 0, "steps": 11}


@pytest.mark.parametrize(
    ("engine", "diagnosis", "dtype"),
    [
        ("lost_5", "the update of step 5 is lost", "bfloat16"),
        ("twice_9", "the update of step 9 is done twice", "bfloat16"),
        pytest.param("twice_9", "the update of step 9 is done twice", "float16", marks=pytest.mark.check),
        ("longer_6", r"updates 10\.0 % too long \(all parameters\) in step 6", "bfloat16"),
        ("gradients_8", r"gradients [45]\.\d % too large \(all parameters\) in step 8", "bfloat16"),
    ],
)
def test_the_step_is_named(run_trial: RunTrial, engine: str, diagnosis: str, dtype: str) -> None:
    result = run_trial(trial({"engine": HERE + engine, "dtype": dtype}, workload=GPT, run=RUN)).correctness
    assert result.verdict in ("drifted", "wrong")
    assert re.fullmatch(diagnosis, str(result.diagnosis))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.check)])  # it draws a replayed step
def test_a_skipped_step_is_named_before_its_consequences(run_trial: RunTrial, seed: int) -> None:
    run = {**RUN, "seed": seed}
    engine = {"engine": HERE + "SkipsAStep", "dtype": "bfloat16"}
    result = run_trial(trial(engine, workload=GPT, run=run)).correctness
    assert result.verdict == "wrong"
    assert str(result.diagnosis).startswith("the update of step 5 is lost; updates ")


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("StaleBias", "the model of rank 1 has other weights than the engine's (blocks.1.mlp_norm.bias)"),
        ("LastUpdateNeverArrives", "the model of rank 0 has other weights than the engine's (tokens.weight"),
    ],
)
def test_the_models_own_weights_must_be_the_engines(run_trial: RunTrial, engine: str, says: str) -> None:
    record = run_trial(trial({"engine": HERE + engine, "dtype": "bfloat16"}, workload=GPT, run=RUN))
    assert record.correctness.verdict == "wrong"
    assert says in str(record.correctness.diagnosis)
