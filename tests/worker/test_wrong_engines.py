"""Engines that are wrong on purpose, in real processes: each is found out and named.

In bfloat16, whose rounding hides most; `make check` has float32 and further engines of a kind.
"""

import re
from typing import Any

import pytest

from tests.worker.conftest import DEVICES, RunTrial, trial
from zbench.record.record import Correctness
from zbench.record.summary import obstacles, summarize
from zbench.spec.sweep import SweepSpec

HERE = "tests.worker.wrong_engines:"
GPT = {"model": "gpt", "options": {"layers": 2, "width": 64, "heads": 4}, "sequence_length": 32}
STEPS: dict[str, Any] = {"warmup_steps": 1, "steps": 3}
ENGINE: dict[str, Any] = {"zero_stage": 1, "gradient_accumulation_steps": 2, "sub_group_size": 30_000}
ENGINE |= {"optimizer": {"weight_decay": 0.2}}
"""Of most trials here: they share a reference."""
IN_CHECK = pytest.mark.check
DTYPES = pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=IN_CHECK)])


def correctness(run_trial: RunTrial, name: str, *, device: str = "cpu", **engine: Any) -> Correctness:
    name = name if ":" in name else HERE + name
    run = STEPS | {"device": device}
    record = run_trial(trial(ENGINE | {"engine": name} | engine, workload=GPT, run=run))
    assert record.error is None
    return record.correctness


@DTYPES
@pytest.mark.parametrize(
    ("name", "diagnosis"),
    [
        ("Summed", "gradients 2.0 x, as if summed over 2 ranks"),
        pytest.param("SummedByNorm", "gradients 2.0 x, as if summed over 2 ranks", marks=IN_CHECK),
        pytest.param("TripledByNorm", "gradients 3.0 x (by their norm)", marks=IN_CHECK),
        ("DropsMicroBatch", "gradients without those of micro-batch 2 of 2"),
        ("DropsRank1", "gradients without those of rank 1"),
        ("DropsTensor", "no gradient (blocks.1.mlp_in.weight)"),
        ("no_decay", "no weight decay on all parameters"),
        pytest.param("no_decay_on_biases", "no weight decay on *.bias", marks=IN_CHECK),
        ("longer", "updates 1.0 % too long (all parameters)"),
        pytest.param("longer_biases", "updates 1.0 % too long (*.bias)", marks=IN_CHECK),
        ("longer_on_rank_1", "updates 0.1 % too long (rank 1's part)"),
        ("other_beta2", "beta2 0.99 instead of 0.999 (all parameters)"),
        ("eps_inside", "eps inside the root (all parameters)"),
        ("no_bias_correction", "no bias correction (all parameters)"),
        ("decay_after", "weight decay after the update (all parameters)"),
        ("narrow_moments", "moments in bfloat16 instead of float32"),
    ],
)
@DEVICES
def test_a_fault_of_the_step_is_named(
    run_trial: RunTrial, name: str, diagnosis: str, dtype: str, device: str
) -> None:
    result = correctness(run_trial, name, dtype=dtype, device=device)
    assert result.verdict in ("drifted", "wrong")
    assert result.diagnosis is not None
    assert result.diagnosis.startswith(diagnosis)


@pytest.mark.check
def test_decay_after_the_update_is_equivalent_below_1e_4_of_it(run_trial: RunTrial) -> None:
    result = correctness(run_trial, "decay_after", dtype="bfloat16", optimizer={"weight_decay": 0.01})
    assert (result.verdict, result.diagnosis) == ("equivalent", None)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [pytest.param("ZeroesBuffers", (0, 1), marks=IN_CHECK), ("ZeroesBuffersOfRank1", (1,))],
)
def test_buffers_are_state(run_trial: RunTrial, name: str, ranks: tuple[int, ...]) -> None:
    workload = {"model": "tests.worker.models:Normed", "micro_batch_size": 4}
    result = run_trial(trial({"engine": HERE + name}, workload=workload)).correctness
    assert result.verdict == "wrong"
    buffers = [f"buffers of rank {rank} that do not change in 5 steps (norm.running_mean)" for rank in ranks]
    assert result.diagnosis == "; ".join(buffers)


def test_frozen_parameters_keep_their_bits(run_trial: RunTrial) -> None:
    engine = {"engine": HERE + "TouchesFrozen", "param_groups": {"layers.1.*": {"frozen": True}}}
    result = run_trial(trial(engine)).correctness
    assert (result.verdict, result.diagnosis) == ("wrong", "frozen parameter layers.1.weight was changed")


def test_parameters_without_a_gradient_keep_their_bits(run_trial: RunTrial) -> None:
    workload = {"model": "tests.worker.models:Idle", "micro_batch_size": 4}
    right, wrong = (
        run_trial(trial({"engine": HERE + name}, workload=workload)).correctness
        for name in ("Engine", "TouchesIdle")
    )
    assert right.verdict == "identical"
    assert wrong.diagnosis == "parameter without a gradient idle.weight was changed"
    assert wrong.verdict == "wrong"


NEITHER = "has neither optimizer_parts() nor first_moments()"


@pytest.mark.parametrize(
    ("name", "unchecked", "why"),
    [
        ("SummedInSecret", ["update", "scale"], NEITHER),
        pytest.param("NotYet", ["update", "scale"], NEITHER, marks=IN_CHECK),
        (
            "FirstMomentsAsIntegers",
            ["update", "scale"],
            "first_moments(): 'tokens.weight' is torch.int64 [256, 64]",
        ),
        (
            "ShowsTooFew",
            ["update"],
            "optimizer_parts(): elements 100 to 16,384 of tokens.weight are shown by no",
        ),
        ("ShowsTwice", ["update"], "optimizer_parts(): elements 7 to 20 of head.weight are shown twice"),
        pytest.param(
            "WithoutMaximum",
            ["update"],
            "optimizer_parts()['head.weight@0'] has no max_exp_avg_sq, which amsgrad needs",
            marks=IN_CHECK,
        ),
        (
            "MomentsOfWrongShape",
            ["update"],
            "optimizer_parts()['head.weight@0']: 'exp_avg' is torch.float32 [16383]",
        ),
    ],
)
def test_what_cannot_be_read_is_said_and_never_the_best(
    run_trial: RunTrial, name: str, unchecked: list[str], why: str
) -> None:
    engine: dict[str, Any] = ENGINE | {"engine": HERE + name, "dtype": "bfloat16"}
    if name == "WithoutMaximum":
        engine |= {"optimizer": {"amsgrad": True}}
    record = run_trial(trial(engine, workload=GPT, run=STEPS))
    assert (record.correctness.verdict, record.correctness.not_checked) == ("equivalent", unchecked)
    assert any(why in warning for warning in record.warnings)
    (summary,) = summarize([record])
    assert obstacles(summary, SweepSpec().objective) == [f"{part} not checked" for part in unchecked]
    assert summary.diagnosis == ", ".join(f"{part} not checked" for part in unchecked)


@DTYPES
def test_an_engine_with_first_moments_alone_is_checked_in_its_first_steps(
    run_trial: RunTrial, dtype: str
) -> None:
    result = correctness(run_trial, "OnlyFirstMoments", dtype=dtype)
    assert (result.verdict, result.diagnosis, result.not_checked) == ("equivalent", None, [])
    terms = {one.term: one for one in result.coefficients}
    assert abs(terms["update length"].value - 1) < 1e-6
    assert abs(terms["weight decay"].value - 1) < 2e-3


# --- faults of a later step

LONGER = {"warmup_steps": 0, "steps": 11}


@pytest.mark.parametrize(
    ("engine", "diagnosis", "dtype"),
    [
        ("lost_5", "the update of step 5 is lost", "bfloat16"),
        pytest.param("twice_9", "the update of step 9 is done twice", "bfloat16", marks=IN_CHECK),
        pytest.param("twice_9", "the update of step 9 is done twice", "float16", marks=pytest.mark.check),
        pytest.param(
            "longer_6", r"updates 10\.0 % too long \(all parameters\) in step 6", "bfloat16", marks=IN_CHECK
        ),
        ("gradients_8", r"gradients [45]\.\d % too large \(all parameters\) in step 8", "bfloat16"),
    ],
)
def test_the_step_is_named(run_trial: RunTrial, engine: str, diagnosis: str, dtype: str) -> None:
    result = run_trial(trial({"engine": HERE + engine, "dtype": dtype}, workload=GPT, run=LONGER)).correctness
    assert result.verdict in ("drifted", "wrong")
    assert re.fullmatch(diagnosis, str(result.diagnosis))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.check)])  # it draws a replayed step
def test_a_skipped_step_is_named_before_its_consequences(run_trial: RunTrial, seed: int) -> None:
    run = {**LONGER, "seed": seed}
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
    record = run_trial(trial({"engine": HERE + engine, "dtype": "bfloat16"}, workload=GPT, run=LONGER))
    assert record.correctness.verdict == "wrong"
    assert says in str(record.correctness.diagnosis)
