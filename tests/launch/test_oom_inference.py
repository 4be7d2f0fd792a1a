"""After an out-of-memory, exactly the points that need at least as much are ruled out."""

from typing import Any

import pytest

from tests.making import make_trial
from zbench.launch.oom_inference import KIND, ImpliedOom
from zbench.record.record import Failure, Outcome, Record
from zbench.spec.trial import TrialSpec


def trial(workload: dict[str, Any] | None = None, **engine: Any) -> TrialSpec:
    options = {"layers": 4, "heads": 4}
    sizes = {"micro_batch_size": 8, "sequence_length": 64, "options": options, **(workload or {})}
    return make_trial(engine, workload=sizes)


def ended(of: TrialSpec, outcome: Outcome = "oom", kind: str = "oom") -> Record:
    return Record("r", of.trial_id, 0, {}, of.config(), outcome, Failure(kind, "made so"))


@pytest.fixture
def known() -> ImpliedOom:
    found = ImpliedOom()
    found.observe(ended(trial(zero_stage=1)))
    return found


@pytest.mark.parametrize(
    ("workload", "engine"),
    [
        ({"micro_batch_size": 9}, {}),
        ({"sequence_length": 65}, {}),
        ({}, {"allgather_bucket_size": 6_000_000}),
        ({"micro_batch_size": 9, "sequence_length": 128}, {"prefetch_bucket_size": 6_000_000}),
        ({"options": {"layers": 8, "heads": 4}}, {}),
    ],
)
def test_a_larger_point_is_ruled_out(
    known: ImpliedOom, workload: dict[str, Any], engine: dict[str, Any]
) -> None:
    larger = trial(workload, zero_stage=1, **engine)
    failure = known.failure(larger)
    assert failure is not None
    assert failure.kind == KIND
    assert failure.message.startswith("oom (implied): ")
    assert trial(zero_stage=1).trial_id in failure.message


@pytest.mark.parametrize(
    ("workload", "engine"),
    [
        ({}, {}),
        ({}, {"reduce_bucket_size": 6_000_000}),  # where it is missing, the device chooses it
        ({"micro_batch_size": 4}, {}),
        ({"options": {"layers": 2, "heads": 4}}, {}),
        ({"options": {"layers": 8, "heads": 8}}, {}),  # more heads need not mean more memory
        ({"micro_batch_size": 16, "sequence_length": 32}, {}),
        ({"micro_batch_size": 16}, {"zero_stage": 2}),
        ({"micro_batch_size": 16}, {"offload_optimizer": "cpu"}),
        ({"micro_batch_size": 16, "activation_checkpointing": True}, {}),
        ({"micro_batch_size": 16}, {"reduce_bucket_size": 1_000}),
    ],
)
def test_any_other_point_runs(known: ImpliedOom, workload: dict[str, Any], engine: dict[str, Any]) -> None:
    other = trial(workload, **{"zero_stage": 1, **engine})
    assert known.failure(other) is None


@pytest.mark.parametrize(("outcome", "kind"), [("crashed", "crashed"), ("timeout", "timeout"), ("oom", KIND)])
def test_only_an_out_of_memory_that_was_seen_teaches(outcome: Outcome, kind: str) -> None:
    found = ImpliedOom()
    found.observe(ended(trial(), outcome, kind))
    assert found.failure(trial({"micro_batch_size": 64})) is None


def test_repeats_and_deadlines_do_not_matter(known: ImpliedOom) -> None:
    larger = trial({"micro_batch_size": 16}, zero_stage=1)
    patient = larger.model_copy(
        update={"run": larger.run.model_copy(update={"timeout": 999.0, "repeats": 9})}
    )
    assert known.failure(patient) is not None
    longer = larger.model_copy(update={"run": larger.run.model_copy(update={"world_size": 4})})
    assert known.failure(longer) is None
