"""When a rank that waits takes its waiting for a deadlock: ranks of one process, over a store in memory."""

import time

import pytest
from torch.distributed import HashStore

from zbench.engine.protocols import Tag
from zbench.engine.transport import agreement
from zbench.engine.transport.agreement import GATHERS, REDUCTIONS, Agreement, Call


class Ranks:
    """Two ranks that count calls; `ended` has those that were disconnected."""

    def __init__(self) -> None:
        store, self.ended = HashStore(), list[int]()
        self.all = [Agreement(rank, 2, store, lambda rank=rank: self.ended.append(rank)) for rank in (0, 1)]  # type: ignore[misc]

    def wait(self, rank: int, channel: str, what: str, seconds: float = 10.0) -> Call:
        """Have a rank wait for a call that it makes now, for so long already."""
        call = self.all[rank].note(channel, Tag(what), 4)
        self.all[rank].waiting = call, time.monotonic() - seconds
        return call


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(agreement, "_SECONDS_TO_HEAR", 0.1)
    return Ranks()


def test_a_rank_that_does_not_wait_or_not_for_long_is_in_no_deadlock(ranks: Ranks) -> None:
    assert not ranks.all[0].look(5.0)
    ranks.wait(0, REDUCTIONS, "one")
    ranks.wait(1, REDUCTIONS, "other")
    assert not ranks.all[0].look(20.0)
    assert ranks.ended == []


def test_ranks_that_wait_in_the_same_call_wait_for_its_bytes(ranks: Ranks) -> None:
    for rank in (0, 1):
        ranks.wait(rank, REDUCTIONS, "the same")
    assert not any(rank.look(5.0) for rank in ranks.all)
    assert not ranks.all[0].look(5.0)
    assert ranks.ended == []


def test_ranks_that_wait_in_different_calls_are_disconnected(ranks: Ranks) -> None:
    for rank, what in enumerate(("one", "other")):
        ranks.wait(rank, REDUCTIONS, what)
    found = [ranks.all[0].look(5.0), ranks.all[1].look(5.0), ranks.all[0].look(5.0)]
    assert found[1:] == [True, True]
    assert set(ranks.ended) == {0, 1}


def test_ranks_that_wait_for_calls_of_one_another_are_disconnected(ranks: Ranks) -> None:
    ranks.wait(0, REDUCTIONS, "one")
    ranks.wait(1, GATHERS, "other")
    assert [ranks.all[rank].look(5.0) for rank in (0, 1, 0)] == [False, True, True]


def test_a_rank_that_waits_for_slow_bytes_will_make_the_call_that_another_waits_for(ranks: Ranks) -> None:
    for rank in (0, 1):
        ranks.wait(rank, GATHERS, "of both")
    ranks.wait(0, REDUCTIONS, "not yet made by rank 1")
    assert not any(ranks.all[rank].look(5.0) for rank in (0, 1, 0))
