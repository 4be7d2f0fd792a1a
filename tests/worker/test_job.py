"""Reference keys, thread counts and the cause among several ranks' errors."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine_keys import NEEDED, OTHER
from tests.worker.conftest import MLP, trial
from zbench.record.record import Failure
from zbench.spec.accumulation import Accumulation, accumulation
from zbench.spec.engine import EngineSpec
from zbench.spec.workload import WorkloadSpec
from zbench.worker.job import error_path, first_failure, reference_key, threads_per_rank, write_error

SHAPES_NO_BIT = {
    "zero_stage", "offload_optimizer", "offload_param", "offload_schedule", "offload_ratio",
    "optimizer_threads", "rollback", "accumulation_mode", "reduce_at", "reduce_bucket_size",
    "allgather_bucket_size", "sub_group_size", "prefetch_bucket_size", "param_persistence_threshold",
    "leaf_modules", "overlap_comm", "compile", "shard_group_size", "ds_config",
}  # fmt: skip
"""With one backward a step. `ds_config` acts by the keys that follow from it."""


@pytest.mark.parametrize("key", OTHER)
def test_trials_share_a_reference_where_a_key_shapes_no_bit_and_only_there(key: str) -> None:
    def made(keys: dict[str, Any]) -> str:
        adam = {name.partition(".")[2]: value for name, value in keys.items() if "." in name}
        plain = {name: value for name, value in keys.items() if "." not in name}
        return reference_key(trial({**plain, "optimizer": adam}))

    needed = NEEDED.get(key, {})
    assert (made(needed | {key: OTHER[key]}) == made(needed)) == (key in SHAPES_NO_BIT)


def test_another_engine_and_a_loss_scale_that_is_not_used_share_a_reference() -> None:
    for engine in ({"engine": "ddp"}, {"initial_loss_scale": 2.0}):
        assert reference_key(trial(engine)) == reference_key(trial())


def test_an_engine_that_rounds_the_model_first_has_a_reference_of_its_own() -> None:
    assert reference_key(trial({"engine": "deepspeed"})) == reference_key(trial())
    halved = {"dtype": "bfloat16"}
    assert reference_key(trial({"engine": "deepspeed", **halved})) != reference_key(trial(halved))


@pytest.mark.parametrize(
    "keys",
    [
        {"engine": {"gradient_accumulation_steps": 2}},
        {"workload": {**MLP, "sequence_length": 33}},
        {"run": {"steps": 4}},
        {"run": {"seed": 1}},
        {"run": {"world_size": 3}},
        {"run": {"threads_per_rank": 2}},
        {"verify": "reference"},
    ],
)
def test_what_shapes_the_trajectory_has_its_own_reference(keys: dict[str, Any]) -> None:
    assert reference_key(trial(**keys)) != reference_key(trial())


def test_the_order_of_summation_has_its_own_reference() -> None:
    several = {"gradient_accumulation_steps": 2}
    keys = {reference_key(trial({**several, "zero_stage": stage})) for stage in (0, 1, 2, 3)}
    assert len(keys) == 2
    assert reference_key(trial({**several, "zero_stage": 2, "reduce_at": "boundary"})) in keys


@pytest.mark.parametrize(
    ("engine", "backwards", "expected"),
    [
        ({"gradient_accumulation_steps": 3}, 1, Accumulation(3, 3, False)),
        ({"gradient_accumulation_steps": 3, "zero_stage": 2}, 1, Accumulation(3, 3, True)),
        ({"accumulation_mode": "unmanaged", "zero_stage": 3}, 4, Accumulation(4, 1, True)),
        ({"accumulation_mode": "multi_backward", "zero_stage": 3}, 1, Accumulation(1, 1, False)),
    ],
)
def test_accumulation_comes_down_to_three_facts(
    engine: dict[str, Any], backwards: int, expected: Accumulation
) -> None:
    found = accumulation(EngineSpec.model_validate(engine), WorkloadSpec(backwards_per_step=backwards))
    assert found == expected
    assert found.loss_divisor * found.averaged_over == found.backwards


def test_threads_are_the_trials_or_an_equal_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert threads_per_rank(trial(run={"threads_per_rank": 5})) == 5
    automatic = trial(run={"threads_per_rank": "auto", "world_size": 2})
    assert threads_per_rank(automatic) == 4
    assert threads_per_rank(automatic, local_world_size=1) == 8
    assert threads_per_rank(trial(run={"threads_per_rank": "auto", "world_size": 16})) == 1


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([(0, "peer_lost"), (1, "crashed")], Failure("crashed", "rank 1: of rank 1", "rank1.log")),
        ([(0, "crashed"), (2, "oom")], Failure("oom", "rank 2: of rank 2", "rank2.log")),
        ([(1, "crashed"), (0, "crashed")], Failure("crashed", "rank 1: of rank 1", "rank1.log")),
        ([(1, "peer_lost")], Failure("crashed", "rank 1: of rank 1", "rank1.log")),
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
    assert first_failure(result, 3) == expected


def test_an_error_file_that_is_cut_off_is_passed_over(tmp_path: Path) -> None:
    result = str(tmp_path / "result.json")
    error_path(result, 0).write_text('{"kind": "cra')
    write_error(result, 1, "crashed", "whole")
    assert first_failure(result, 2) == Failure("crashed", "rank 1: whole", "rank1.log")
