"""Failures end in one line that names the cause, and in the right outcome."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import RunTrial, trial
from zbench.errors import UsageError
from zbench.job.calling import call
from zbench.job.failures import first_failure, kind_of, message_of, write_error
from zbench.record.record import Failure

ENGINES, MODELS = "tests.worker.engines:", "tests.worker.models:"
IN_CHECK = pytest.mark.check
GREEDY: dict[str, Any] = {"model": MODELS + "Greedy", "sequence_length": 8}


def test_the_rank_that_failed_is_named_not_the_one_that_lost_its_peer(run_trial: RunTrial) -> None:
    record = run_trial(trial({"engine": ENGINES + "RaisesOnRank1"}, verify="off"))
    assert record.outcome == "crashed"
    assert record.error.message == "rank 1: ArithmeticError: the second step"


def test_a_memory_limit_ends_a_trial_as_out_of_memory(run_trial: RunTrial) -> None:
    record = run_trial(trial(workload=GREEDY, run={"memory_limit": "512Mi", "world_size": 1}, verify="off"))
    assert record.outcome == "oom"
    assert "can't allocate memory" in record.error.message


@pytest.mark.parametrize("clock", ["stands", pytest.param("goes_back", marks=IN_CHECK), "is_coarse"])
def test_a_model_that_replaces_the_clocks_is_timed_by_the_real_ones(run_trial: RunTrial, clock: str) -> None:
    workload = {"model": MODELS + "with_own_clock", "options": {"shape": clock}, "micro_batch_size": 2}
    record = run_trial(trial(workload=workload))
    assert record.error is None
    assert all(0 < seconds < 60 for seconds in record.timing.step_seconds)
    assert len(set(record.timing.step_seconds)) > 1
    assert all(0 <= seconds < 60 for seconds in record.timing.phases.values())


def test_a_message_of_a_megabyte_is_cut_and_the_crash_stays_a_crash(run_trial: RunTrial) -> None:
    record = run_trial(trial(workload={"model": MODELS + "long_message"}, run={"timeout": 60}, verify="off"))
    assert record.outcome == "crashed"
    assert re.match("rank [01]: RuntimeError: a a a ", record.error.message)
    assert len(record.error.message) < 500


def test_a_limit_that_suffices_is_the_engines_and_changes_nothing(run_trial: RunTrial) -> None:
    record = run_trial(trial({"engine": ENGINES + "knows_its_limit"}, run={"memory_limit": "64Mi"}))
    assert (record.error, record.correctness.verdict) == (None, "identical")


@pytest.mark.parametrize(
    ("engine", "model", "message"),
    [
        ("no_such_module:build", None, "engine.engine: cannot load"),
        pytest.param(ENGINES + "constant", None, "is of type int, not callable", marks=IN_CHECK),
        (ENGINES + "returns_nothing", None, "returned NoneType, which has no backward, step"),
        pytest.param("unheard_of", None, "engine.engine: cannot use 'unheard_of' here", marks=IN_CHECK),
        pytest.param("builtin", MODELS + "number", "returned a int", marks=IN_CHECK),
        ("builtin", MODELS + "Frozen", "no trainable parameter"),
    ],
)
def test_what_is_no_engine_and_no_model_to_train_is_the_users_mistake(
    run_trial: RunTrial, engine: str, model: str | None, message: str
) -> None:
    workload = {"model": model, "sequence_length": 8} if model else None
    record = run_trial(trial({"engine": engine}, workload=workload, verify="off"))
    assert record.error.kind == "usage"
    assert message in record.error.message


def test_a_model_that_an_engine_cannot_train_makes_an_invalid_row(run_trial: RunTrial) -> None:
    workload = {"model": MODELS + "Scaled", "sequence_length": 8}
    record = run_trial(trial({"engine": "fsdp2", "zero_stage": 3}, workload=workload, verify="off"))
    assert (record.outcome, record.error.kind) == ("invalid", "unsupported")
    assert "'scale' has none; give it the shape [1]" in record.error.message


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (UsageError("engine.engine: cannot"), "usage", "engine.engine: cannot"),
        (UsageError("no loss; write:\n    loss = 1\n"), "usage", "no loss; write:\n    loss = 1"),
        (MemoryError(), "oom", "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom", "OutOfMemoryError: CUDA out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "oom", None),
        (RuntimeError("can't start new thread"), "oom", None),
        (OSError(12, "Cannot allocate memory"), "oom", None),
        (RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4"), "peer_lost", None),
        (RuntimeError("size mismatch\nof two"), "crashed", "RuntimeError: size mismatch"),
        (RuntimeError("x" * 5000), "crashed", f"RuntimeError: {'x' * 385}…"),
        (KeyboardInterrupt(), "crashed", None),
    ],
)
def test_an_error_has_a_kind_and_a_message_of_one_line_but_for_advice(
    error: BaseException, kind: str, message: str | None
) -> None:
    assert kind_of(error) == kind
    assert message in (message_of(error), None)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([(0, "peer_lost"), (1, "crashed")], Failure("crashed", "rank 1: of rank 1", "rank1.log")),
        ([(0, "crashed"), (2, "oom")], Failure("oom", "rank 2: of rank 2", "rank2.log")),
        ([(1, "crashed"), (0, "crashed")], Failure("crashed", "rank 1: of rank 1", "rank1.log")),
        ([(0, "oom"), (1, "usage")], Failure("usage", "rank 1: of rank 1", "rank1.log")),
        ([("reference", "crashed")], Failure("crashed", "of rank reference", "rank0.log")),
        ([], None),
    ],
)
def test_the_cause_is_found_among_the_errors(
    tmp_path: Path, errors: list[tuple[int | str, str]], expected: Failure | None
) -> None:
    result = str(tmp_path / "result.json")
    for rank, kind in errors:
        write_error(result, rank, kind, f"of rank {rank}")
    assert first_failure(result, 7) == expected


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [(None, 0, None), (3, 3, None), ("no more", 1, "RuntimeError: the program ended itself: no more")],
)
def test_a_program_that_ends_itself_ends_its_rank(
    code: int | str | None, status: int, message: str | None, tmp_path: Path
) -> None:
    def job() -> None:
        raise SystemExit(code)

    result = str(tmp_path / "result.json")
    assert call("tests.worker.test_failures:trial", job, (result, 0)) == status
    failure = first_failure(result, 1)
    assert failure == (message and Failure("crashed", f"rank 0: {message}", "rank0.log"))
