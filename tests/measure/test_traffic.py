"""Counting collectives from outside: calls, the bytes a rank hands in, and nothing else changed."""

import torch
from torch import Tensor

from zbench.engine.protocols import Tag, Work
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import TrafficMeter
from zbench.record.record import Traffic


class FakeWork:
    def __init__(self) -> None:
        self.waited = 0

    def wait(self) -> None:
        self.waited += 1

    def is_completed(self) -> bool:
        return self.waited > 0


TAG = Tag("a test")


class FakeCollectives:
    """Notes what it was asked, as rank 1 of `world_size`."""

    def __init__(self, world_size: int) -> None:
        self.rank, self.world_size = 1 % world_size, world_size
        self.shard, self.shards = self.rank, world_size
        self.asked: list[tuple[object, ...]] = []
        self.work = FakeWork()
        self.extra = "of its own"

    def _note(self, *what: object) -> Work:
        self.asked.append(what)
        return self.work

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        return self._note("reduce_scatter", send, out)

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        return self._note("all_gather", flat)

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        self._note("all_gather_small", values)
        return values.expand(self.world_size, *values.shape)

    gather_shards = all_gather_small

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Work:
        return self._note("broadcast", tensor, source)

    def barrier(self) -> None:
        self._note("barrier")


def test_each_kind_counts_what_this_rank_hands_in() -> None:
    meter = TrafficMeter(PhaseClock())
    counting = meter.count(FakeCollectives(4))
    counting.reduce_scatter(torch.zeros(400, dtype=torch.bfloat16), torch.zeros(100), TAG)
    counting.reduce_scatter(torch.zeros(40), torch.zeros(10), TAG)
    counting.all_gather(torch.zeros(800), TAG)
    counting.all_gather_small(torch.zeros(3, dtype=torch.float64), TAG)
    counting.broadcast(torch.zeros(7), 1, TAG)
    counting.broadcast(torch.zeros(7), 0, TAG)
    counting.barrier()
    assert meter.take() == {
        "reduce_scatter": Traffic(2, 800 + 160),
        "all_gather": Traffic(1, 800),
        "all_gather_small": Traffic(1, 24),
        "broadcast": Traffic(2, 28),
        "barrier": Traffic(1, 0),
    }
    assert meter.take() == {}


def test_a_world_of_one_rank_sends_nothing() -> None:
    meter = TrafficMeter(PhaseClock())
    counting = meter.count(FakeCollectives(1))
    counting.reduce_scatter(torch.zeros(4), torch.zeros(4), TAG)
    counting.all_gather(torch.zeros(4), TAG)
    assert meter.take() == {}


def test_calls_and_results_pass_through_unchanged() -> None:
    inner = FakeCollectives(2)
    counting = TrafficMeter(PhaseClock()).count(inner)
    send, out = torch.zeros(4), torch.zeros(2)
    work = counting.reduce_scatter(send, out, TAG)
    assert inner.asked[0][1] is send
    assert inner.asked[0][2] is out
    work.wait()
    assert inner.work.waited == 1
    assert counting.all_gather_small(torch.ones(3), TAG).shape == (2, 3)
    assert (counting.rank, counting.world_size, counting.extra) == (1, 2, "of its own")


def test_launching_and_waiting_are_charged_to_reduce_and_gather() -> None:
    clock = PhaseClock()
    counting = TrafficMeter(clock).count(FakeCollectives(2))
    with clock.phase("backward"):
        counting.reduce_scatter(torch.zeros(4), torch.zeros(2), TAG).wait()
        counting.all_gather(torch.zeros(4), TAG).wait()
    phases = clock.take()
    assert phases["reduce"] > 0
    assert phases["gather"] > 0
    assert phases["optimizer"] == 0
