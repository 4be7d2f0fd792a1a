"""When a rank that waits takes its waiting for a deadlock: ranks of one process, over a store in memory."""

import time

import pytest
from torch.distributed import HashStore

from zbench.engine.protocols import Tag
from zbench.engine.transport import agreement
from zbench.engine.transport.agreement import GATHERS, REDUCTIONS, Agreement, Call
from zbench.errors import RanksDisagreeError


class Ranks:
    """Ranks that count calls; `ended` has those that were disconnected."""

    def __init__(self, count: int = 2) -> None:
        store = HashStore()
        self.ended = list[int]()
        self.all = [
            Agreement(rank, count, store, lambda rank=rank: self.ended.append(rank))  # type: ignore[misc]
            for rank in range(count)
        ]

    def wait(self, rank: int, channel: str, topic: str, seconds: float = 10.0) -> Call:
        """Have a rank wait for a call that it makes now, for so long already."""
        call = self.all[rank].note(channel, Tag(topic), 4)
        self.all[rank].waits[0] = call, time.monotonic() - seconds
        return call

    def looks(self, *ranks: int, patience: float = 5.0) -> list[bool]:
        """Return which of these ranks, one after another, find a deadlock."""
        return [self.all[rank].look(patience) for rank in ranks]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(agreement, "_SECONDS_TO_HEAR", 0.1)
    return Ranks()


@pytest.mark.parametrize(("channel", "topic"), [(REDUCTIONS, "other"), (GATHERS, "one")])
def test_ranks_that_wait_for_different_calls_are_disconnected_after_patience(
    ranks: Ranks, channel: str, topic: str
) -> None:
    assert ranks.looks(0) == [False], "a rank that does not wait is in no deadlock"
    ranks.wait(0, REDUCTIONS, "one")
    ranks.wait(1, channel, topic)
    assert ranks.looks(0, 1, 0, patience=20.0) == [False] * 3
    with ranks.all[0].waits_for(ranks.all[0].note(GATHERS, Tag("a gather"), 4)):
        pass  # a wait that ends hides no other thread's
    assert ranks.looks(0, 1, 0)[1:] == [True, True]
    assert set(ranks.ended) == {0, 1}


def test_ranks_that_wait_for_common_calls_are_in_no_deadlock(ranks: Ranks) -> None:
    for rank in (0, 1):
        ranks.wait(rank, GATHERS, "of both")
    assert not any(ranks.looks(0, 1, 0))
    ranks.wait(0, REDUCTIONS, "not yet made by rank 1")
    assert not any(ranks.looks(0, 1, 0))
    assert ranks.ended == []


@pytest.mark.parametrize("by_another_communicator", [False, True])
def test_a_rank_that_left_because_another_had_is_not_named(by_another_communicator: bool) -> None:
    """It has closed its engine, and so its connection to the rank before it."""
    ranks = Ranks(3)
    first, second, _ = ranks.all
    for rank in (0, 1):
        ranks.wait(rank, GATHERS, "of all")
    if by_another_communicator:
        second.end_with(RanksDisagreeError("there"))
    second.tell_gone(2)
    second.look(5.0)
    first.tell_gone(1)
    assert first.look(5.0)
    with pytest.raises(RanksDisagreeError, match="rank 2 has left"):
        first.check_going_on()
