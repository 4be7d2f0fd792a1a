"""Counting collectives from outside: calls, the bytes a rank hands in, and nothing else changed."""

from unittest.mock import Mock

import torch

from zbench.engine.protocols import Tag
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import TrafficMeter
from zbench.record.record import Traffic

TAG = Tag("a test")


def collectives(world_size: int) -> Mock:
    """Return what takes every call, as rank 1 of `world_size` (of one: rank 0)."""
    rank = 1 % world_size
    return Mock(rank=rank, world_size=world_size, shard=rank, shards=world_size)


def test_each_kind_counts_what_this_rank_hands_in() -> None:
    meter = TrafficMeter(PhaseClock())
    counting = meter.count(collectives(2))
    counting.reduce_scatter(torch.zeros(400, dtype=torch.bfloat16), torch.zeros(100), TAG)
    counting.reduce_scatter(torch.zeros(40), torch.zeros(10), TAG)
    counting.all_gather(torch.zeros(800), TAG)
    counting.all_gather_small(torch.zeros(3, dtype=torch.float64), TAG)
    counting.add_up(torch.zeros(5, dtype=torch.int64), TAG)
    counting.broadcast(torch.zeros(7), 1, TAG)
    counting.broadcast(torch.zeros(9), 0, TAG)
    counting.barrier()
    assert meter.take() == {
        "reduce_scatter": Traffic(2, 800 + 160),
        "all_gather": Traffic(1, 1600),
        "all_gather_small": Traffic(1, 24),
        "all_reduce": Traffic(1, 40),
        "broadcast": Traffic(2, 28),
        "barrier": Traffic(1, 0),
    }
    alone = meter.count(collectives(1))
    alone.reduce_scatter(torch.zeros(4), torch.zeros(4), TAG)
    alone.all_gather(torch.zeros(4), TAG)
    assert meter.take() == {}


def test_calls_and_results_pass_through_unchanged() -> None:
    inner = collectives(2)
    counting = TrafficMeter(PhaseClock()).count(inner)
    send = torch.zeros(4)
    out = torch.zeros(2)
    values = torch.ones(3)
    work = counting.reduce_scatter(send, out, TAG)
    assert [id(argument) for argument in inner.reduce_scatter.call_args.args] == [id(send), id(out), id(TAG)]
    inner.reduce_scatter.return_value.wait.assert_not_called()
    work.wait()
    inner.reduce_scatter.return_value.wait.assert_called_once_with()
    for name in ("all_gather_small", "gather_shards", "add_up"):
        assert getattr(counting, name)(values, TAG) is getattr(inner, name).return_value
    assert (counting.rank, counting.world_size) == (1, 2)
    assert counting.of_its_own is inner.of_its_own


def test_launching_and_waiting_are_charged_to_reduce_and_gather() -> None:
    clock = PhaseClock()
    counting = TrafficMeter(clock).count(collectives(2))
    with clock.phase("backward"):
        counting.reduce_scatter(torch.zeros(4), torch.zeros(2), TAG).wait()
        counting.all_gather(torch.zeros(4), TAG).wait()
    phases = clock.take()
    assert phases["reduce"] > 0
    assert phases["gather"] > 0
    assert phases["optimizer"] == 0
