"""Failures end in one line that names the cause, and in the right outcome."""

from typing import Any

import pytest

from tests.worker.conftest import RunTrial, trial

FAILING = "tests.worker.failing_engines:"
GREEDY: dict[str, Any] = {"model": FAILING + "greedy", "sequence_length": 8}


def test_the_rank_that_failed_is_named_not_the_one_that_lost_its_peer(run_trial: RunTrial) -> None:
    record = run_trial(trial({"engine": FAILING + "raises_on_rank_1"}, verify="off"))
    assert record.outcome == "crashed"
    assert record.error is not None
    assert record.error.message == "rank 1: ArithmeticError: the second step"


def test_a_memory_limit_ends_a_trial_as_out_of_memory(run_trial: RunTrial) -> None:
    record = run_trial(trial(workload=GREEDY, run={"memory_limit": "512Mi", "world_size": 1}, verify="off"))
    assert record.outcome == "oom"
    assert record.error is not None
    assert "can't allocate memory" in record.error.message


def test_a_memory_limit_that_suffices_changes_nothing(run_trial: RunTrial) -> None:
    record = run_trial(trial(run={"memory_limit": "64Mi"}))
    assert (record.outcome, record.correctness.verdict) == ("ok", "identical")


@pytest.mark.parametrize(
    ("engine", "workload", "said"),
    [
        ("no_such_module:build", None, "engine.engine: cannot load"),
        (FAILING + "constant", None, "is a int, not callable"),
        ("unheard_of", None, "engine.engine: cannot use 'unheard_of' here"),
        ("builtin", {"model": FAILING + "number", "sequence_length": 8}, "returned a int"),
    ],
)
def test_names_that_lead_nowhere_are_the_users_mistake(
    run_trial: RunTrial, engine: str, workload: dict[str, Any] | None, said: str
) -> None:
    record = run_trial(trial({"engine": engine}, workload=workload, verify="off"))
    assert record.error is not None
    assert record.error.kind == "usage"
    assert said in record.error.message
