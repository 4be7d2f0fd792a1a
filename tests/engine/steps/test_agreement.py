"""Ranks that do not make the same collective calls stop with one error; no shard is swapped."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.steps.agreeing import WIDTH
from zbench.testing.ranks import RankPool

CASES = "tests.engine.steps.agreeing:"
WAYS = ["memory", "sockets"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("inner", "world"), [(32, 3), (48, 2)], ids=["same-size", "other-size"])
def test_experts_in_another_order_stop_every_rank_and_no_weight_changes(
    ranks: RankPool, way: str, inner: int, world: int
) -> None:
    for message, same in ranks.run(world, CASES + "other_order", way, inner, {}):
        first, again = message.split(" | ")
        assert first.startswith("RanksDisagreeError")
        assert again == first
        assert "rank 0 gathers the weights experts.0" in first
        assert f"rank {world - 1} gathers the weights experts.1" in first
        assert "same order" in first, "the remedy"
        assert same, "the step must not be taken"


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_that_reads_a_weight_alone_stops_every_rank(ranks: RankPool, way: str) -> None:
    for message in ranks.run(2, CASES + "one_reads", way):
        assert message.startswith("RanksDisagreeError"), message
        assert "rank 0 gathers the weights experts.1.0" in message
        assert "rank 1 gathers the weights first" in message


@pytest.mark.parametrize("way", WAYS)
def test_where_ranks_wait_for_one_another_the_deadline_says_in_which_calls(ranks: RankPool, way: str) -> None:
    for message in ranks.run(2, CASES + "one_stops", way):
        assert message.startswith("RanksDisagreeError"), message
        assert "rank 0 reduces the gradients of bucket" in message
        assert "rank 1 gathers the step's norm and flags" in message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("where", "stage"), [("before", 3), ("inside", 3), ("without", 2)])
def test_an_error_on_one_rank_alone_ends_the_others_with_that_reason(
    ranks: RankPool, way: str, where: str, stage: int
) -> None:
    first, second = ranks.run(2, CASES + "one_raises", way, where, stage)
    assert first.startswith("ValueError: in a hook" if where == "inside" else "UsageError"), first
    assert second.startswith("RanksDisagreeError: rank 0 has stopped: " + first[:40]), second


def test_behind_a_backend_without_headers_the_step_compares_a_hash_of_all_calls(ranks: RankPool) -> None:
    for message, same in ranks.run(2, CASES + "other_order", "backend", WIDTH, {}):
        assert message.startswith("RanksDisagreeError"), message
        assert "rank 0 gathers the weights experts.0" in message
        assert "rank 1 gathers the weights experts.1" in message
        assert same, "the step must not be taken"


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"])
def test_collectives_are_those_of_the_backend_that_serves_the_device(ranks: RankPool, backend: str) -> None:
    for message in ranks.run(4, CASES + "backend_of", backend):
        assert message.endswith("CrossMemoryCollectives"), message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("how", "stage", "named"),
    [
        ("is killed", 3, "left"),
        ("closes", 1, "stopped: it has closed its engine"),
        ("closes on its way out", 2, "stopped: KeyError: 'in the data loader'"),
    ],
)
def test_a_rank_that_leaves_is_named_on_the_others_with_its_last_call(
    way: str, how: str, stage: int, named: str
) -> None:
    ranks = RankPool(3)
    try:
        ranks.begin(3, "tests.engine.steps.leaving:train", way, how, stage)
        for rank in range(2):
            returned, words = ranks.answer(rank, 60.0)
            assert returned, words
            assert words.startswith(f"RanksDisagreeError: rank 2 has {named}"), words
            assert "(this rank gathers" in words or "(this rank reduces" in words
            if how == "is killed":
                assert "its last such call: gathers" in words or "its last such call: reduces" in words
    finally:
        ranks.close()


def test_an_error_outside_the_engine_that_ends_a_rank_is_named_on_the_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.steps.leaving", str(tmp_path / "store")]
    others = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([*command, str(rank), "2", "memory", "raises"], **others)  # type: ignore[call-overload]
        for rank in (0, 1)
    ]
    words, why = started[0].communicate(timeout=100)[0], started[1].communicate(timeout=100)[1]
    assert "KeyError: 'in the data loader'" in why
    assert words.startswith("RanksDisagreeError: rank 1 has stopped: KeyError: 'in the data loader'"), words
