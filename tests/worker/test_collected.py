"""Faults that TTrace and TrainCheck collected are named, and their healthy twins are not."""

from typing import Any

import pytest

from tests.worker.conftest import RunTrial, trial
from zbench.record.record import Correctness

GPT = {
    "model": "gpt",
    "options": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64, "tied_head": True},
    "sequence_length": 16,
}
IN_CHECK = pytest.mark.check
STAGES = {"ddp": 0, "fsdp2": 2, "builtin": 2}


def correctness(run_trial: RunTrial, fault: str, of: str) -> Correctness:
    engine: dict[str, Any] = {"engine": f"tests.worker.collected:{fault}_of_{of}", "zero_stage": STAGES[of]}
    engine |= {"gradient_accumulation_steps": 2, "optimizer": {"weight_decay": 0.1}}
    ranks = 4 if fault == "reduced_in_pairs" else 2
    record = run_trial(trial(engine, workload=GPT, run={"world_size": ranks, "steps": 4}))
    assert record.error is None, record.error
    return record.correctness


@pytest.mark.parametrize(
    "of", ["ddp", pytest.param("fsdp2", marks=IN_CHECK), pytest.param("builtin", marks=IN_CHECK)]
)
def test_the_healthy_twin_is_right(run_trial: RunTrial, of: str) -> None:
    assert correctness(run_trial, "nothing", of).verdict in ("identical", "equivalent")


@pytest.mark.parametrize(
    ("fault", "of"),
    [
        ("never_reduced", "ddp"),
        ("norms_differ", "ddp"),
        ("old_weights", "builtin"),
        *(
            pytest.param(fault, of, marks=IN_CHECK)
            for of, faults in {
                "ddp": "sometimes_reduced norms_not_reduced reduced_in_pairs never_counted rounded_gradients"
                " reduced_too_early scaled weighed_by_rank norms_in_bfloat16 frozen untied old_weights"
                " recomputed_otherwise",
                "fsdp2": "never_counted scaled weighed_by_rank norms_in_bfloat16 frozen untied old_weights"
                " recomputed_otherwise",
                "builtin": "scaled weighed_by_rank norms_in_bfloat16 frozen untied recomputed_otherwise",
            }.items()
            for fault in faults.split()
        ),
    ],
)
def test_a_collected_fault_is_named(run_trial: RunTrial, fault: str, of: str) -> None:
    result = correctness(run_trial, fault, of)
    assert result.verdict in ("drifted", "wrong")
    assert result.diagnosis is not None
