"""Ranks that do not make the same collective calls stop with one error; no shard is swapped."""

import subprocess
import sys
from pathlib import Path

import pytest

from zbench.testing.ranks import RankPool

CASES = "tests.engine.steps.agreeing:"
each_way = pytest.mark.parametrize("way", ["memory", "sockets"])


@pytest.mark.parametrize("way", ["memory", "sockets", "backend"])
def test_experts_in_another_order_stop_every_rank_and_no_weight_changes(ranks: RankPool, way: str) -> None:
    """A backend's messages have no headers: there the step compares a hash of all calls."""
    for message, same in ranks.run(3, CASES + "other_order", way):
        first, again = message.split(" | ")
        assert first.startswith("RanksDisagreeError")
        assert again == first
        assert "rank 0 gathers the weights experts.0" in first
        assert "rank 2 gathers the weights experts.1" in first
        assert "same order" in first, "the remedy"
        assert same, "the step must not be taken"


@each_way
def test_one_rank_that_reads_a_weight_alone_stops_every_rank(ranks: RankPool, way: str) -> None:
    for message in ranks.run(2, CASES + "one_reads", way):
        assert message.startswith("RanksDisagreeError"), message
        assert "rank 0 gathers the weights experts.1.0" in message
        assert "rank 1 gathers the weights first" in message


@each_way
def test_ranks_that_wait_for_one_another_are_named(ranks: RankPool, way: str) -> None:
    for message in ranks.run(2, CASES + "one_stops", way):
        assert message.startswith("RanksDisagreeError"), message
        assert "rank 0 reduces the gradients of bucket" in message
        assert "rank 1 gathers the step's norm and flags" in message


@each_way
@pytest.mark.parametrize(("where", "stage"), [("inside", 3), ("without", 2)])
def test_an_error_on_one_rank_ends_the_others_with_it(
    ranks: RankPool, way: str, where: str, stage: int
) -> None:
    first, second = ranks.run(2, CASES + "one_raises", way, where, stage)
    assert first.startswith("ValueError: in a hook" if where == "inside" else "UsageError"), first
    assert second.startswith("RanksDisagreeError: rank 0 has stopped: " + first[:40]), second


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:gloo"])
def test_collectives_are_those_of_the_backend_that_serves_the_device(ranks: RankPool, backend: str) -> None:
    for message in ranks.run(4, CASES + "backend_of", backend):
        assert message.endswith("CrossMemoryCollectives"), message


@pytest.mark.parametrize(
    ("way", "how", "stage", "named"),
    [
        ("memory", "is killed", 3, "left"),
        ("sockets", "closes", 1, "stopped: it has closed its engine"),
        pytest.param("sockets", "is killed", 3, "left", marks=pytest.mark.check),
        pytest.param("memory", "closes", 1, "stopped: it has closed its engine", marks=pytest.mark.check),
        ("memory", "closes on its way out", 2, "stopped: KeyError: 'in the data loader'"),
    ],
)
def test_a_rank_that_leaves_is_named_on_the_others_with_its_last_call(
    way: str, how: str, stage: int, named: str
) -> None:
    ranks = RankPool(3)
    try:
        ranks.begin(3, CASES + "leave", way, how, stage)
        for rank in range(2):
            returned, words = ranks.answer(rank, 60.0)
            assert returned, words
            assert words.startswith(f"RanksDisagreeError: rank 2 has {named}"), words
            assert "(this rank gathers" in words or "(this rank reduces" in words
            if how == "is killed":
                assert "its last such call: gathers" in words or "its last such call: reduces" in words
    finally:
        ranks.close()


@pytest.mark.check
def test_an_error_outside_the_engine_that_ends_a_rank_is_named_on_the_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.steps.agreeing", str(tmp_path / "store")]
    started = [
        subprocess.Popen([*command, rank, "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    words, why = started[0].communicate(timeout=100)[0], started[1].communicate(timeout=100)[1]
    assert "KeyError: 'in the data loader'" in why
    assert words.startswith("RanksDisagreeError: rank 1 has stopped: KeyError: 'in the data loader'"), words
