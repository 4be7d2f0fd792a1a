"""The life of a bucket, by its transitions: each test fails where one comes too early, too late or never."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from zbench.engine.gradients.bucket import _NEXT, Buckets, BucketState, GradientBucket
from zbench.engine.gradients.gradients import Gradients
from zbench.engine.gradients.storage import (
    BucketMemory,
    FromPool,
    HostAccumulation,
    KeptBuffer,
    RankSums,
    SendingMemory,
    SumsMemory,
)
from zbench.engine.memory.buffers import MemoryLayout
from zbench.engine.memory.kinds import DeviceMemory, PinnedHostMemory
from zbench.engine.partition import Extent, GatherGroup, plan_layout
from zbench.engine.policies import AccumulationBoundary
from zbench.engine.protocols import Tag, Work
from zbench.engine.shard_layout import ShardedLayout
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.errors import UsageError

CPU = torch.device("cpu")
SIZES = [512, 512, 512]  # buckets in backward order: of parameters 2, 1 and 0
ONLY, FIRST = AccumulationBoundary(first=True, last=True), AccumulationBoundary(first=True, last=False)
LAST = AccumulationBoundary(first=False, last=True)
UNKNOWN = AccumulationBoundary(first=True, last=None)
LOSS = torch.zeros(())


class Late:
    """A reduction that reads and writes only when it is waited for, as one of a device may."""

    def __init__(self, send: Tensor, out: Tensor) -> None:
        self._send, self._out, self.done = send, out, False

    def wait(self) -> None:
        if not self.done:
            self._out.copy_(self._send)
        self.done = True

    def is_completed(self) -> bool:
        return self.done


class LateCollectives(SingleProcessCollectives):
    """Notes what is reduced; its result is there after the wait."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Late] = []

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self.works.append(Late(send, out))
        return self.works[-1]


class Case:
    """Gradients of three parameters, in buckets of `block` elements, and in memory that is kept.

    host: what several backwards leave is in host memory. how: options of `Buckets`.
    """

    def __init__(
        self,
        *,
        boundary: bool = True,
        without_copy: bool = False,
        block: int = 512,
        host: bool = False,
        **how: Any,
    ) -> None:
        layout = plan_layout(SIZES, [GatherGroup((2, 1, 0))], shards=1, block_size=block)
        shard = ShardedLayout(layout, 0)
        memory = DeviceMemory(CPU)
        self.comm = LateCollectives()
        self.pool = ScratchPool(CPU)
        place = MemoryLayout.of([(memory, [Extent(0, layout.length)])])
        self.sums = RankSums(shard, place, CPU, self.comm, torch.float32, SumsMemory.ENGINE)
        self.buckets = Buckets(self.comm, self.sums, **{"in_flight": 10**6} | how)
        lender = FromPool(layout, self.pool, [torch.float32], without_copy)
        once = BucketMemory(lender)
        buffer = KeptBuffer(layout.length, PinnedHostMemory(CPU) if host else memory, torch.float32)
        several = HostAccumulation(buffer, lender, replace(lender), None) if host else BucketMemory(buffer)
        chosen = several if boundary else None
        self.gradients = Gradients(self.buckets, (), SendingMemory(once, chosen, boundary, [self.pool]))
        self.reported: list[tuple[int, float]] = []
        self.buckets.on_reduced = lambda b, _: self.reported.append((b.index, float(self.sum_of(b.index))))

    def sum_of(self, index: int) -> Tensor:
        return self.sums.sums.run(index * 512, 512).max()

    def backward(self, boundary: AccumulationBoundary, values: dict[int, float]) -> None:
        self.gradients.begin(boundary, LOSS)
        for index, value in values.items():
            self.gradients.accept(index, torch.full((512,), value))
        self.gradients.finish()

    @property
    def states(self) -> list[BucketState]:
        return [bucket.state for bucket in self.buckets.all]

    @property
    def values(self) -> list[float]:
        return [float(self.sum_of(k)) for k in range(3)]


EMPTY, FILLING, IN_FLIGHT, REDUCED, CONSUMED = BucketState


@pytest.mark.parametrize("state", BucketState)
@pytest.mark.parametrize("after", BucketState)
def test_a_bucket_takes_the_transitions_of_the_table_and_no_other(
    state: BucketState, after: BucketState
) -> None:
    bucket = GradientBucket(Case().buckets.all[0].place, Tag("a test"), state=state)
    if after in _NEXT[state]:
        bucket.become(after)
        assert bucket.state is after
    else:
        with pytest.raises(AssertionError, match="a test"):
            bucket.become(after)


def test_a_bucket_fills_flies_is_reduced_and_consumed_in_the_order_of_backward() -> None:
    case = Case()
    assert case.states == [EMPTY] * 3
    case.gradients.begin(ONLY, LOSS)
    case.gradients.accept(1, torch.full((512,), 2.0))
    assert case.states == [EMPTY, FILLING, EMPTY], "the one before it is not full"
    case.gradients.accept(2, torch.full((512,), 1.0))
    assert case.states == [IN_FLIGHT, IN_FLIGHT, EMPTY]
    assert not case.reported, "nobody may read what is not there yet"
    case.gradients.accept(0, torch.full((512,), 3.0))
    case.gradients.finish()
    assert case.states == [CONSUMED] * 3
    assert case.reported == [(0, 1.0), (1, 2.0), (2, 3.0)]
    case.gradients.clear()
    assert case.states == [EMPTY] * 3
    assert case.pool.bytes == sum(t.nbytes for t in case.pool.free), "every buffer was given back"


def test_what_no_gradient_came_for_is_zero_although_its_buffer_was_used() -> None:
    case = Case()
    case.backward(ONLY, {2: 1.0, 1: 2.0, 0: 3.0})
    case.gradients.clear()
    case.backward(ONLY, {2: 5.0})
    assert case.values == [5.0, 0.0, 0.0]


def test_a_buffer_is_used_again_only_behind_the_reduction_that_reads_it() -> None:
    case = Case(in_flight=0)
    case.backward(ONLY, {2: 1.0, 1: 2.0, 0: 3.0})
    assert case.values == [1.0, 2.0, 3.0]
    assert case.pool.bytes == 4 * 512, "one at a time"
    assert all(work.done for work in case.comm.works)


def test_at_most_as_many_elements_are_in_flight_as_may_be() -> None:
    case = Case(in_flight=1024)
    case.gradients.begin(ONLY, LOSS)
    for index in (2, 1, 0):
        case.gradients.accept(index, torch.ones(512))
    assert [work.done for work in case.comm.works] == [True, False, False]


def test_a_gradient_that_fills_its_bucket_is_sent_from_its_own_memory_until_it_was_reduced() -> None:
    case = Case(without_copy=True)
    case.gradients.begin(ONLY, LOSS)
    gradient = torch.full((512,), 4.0)
    case.gradients.accept(2, gradient)
    assert case.comm.works[0]._send.data_ptr() == gradient.data_ptr()
    case.gradients.finish()
    assert case.values[0] == 4.0
    assert case.buckets.all[0].loan is None, "autograd's memory is free again"


def test_a_gradient_of_any_shape_and_strides_is_written_in_its_own_order() -> None:
    case = Case(without_copy=True)
    values = torch.arange(512.0).view(16, 32)
    case.gradients.begin(ONLY, LOSS)
    case.gradients.accept(2, values)
    case.gradients.accept(1, values.t().contiguous().t())
    assert [work._send.shape for work in case.comm.works] == [(512,)] * 2
    case.gradients.finish()
    assert all(torch.equal(case.sums.sums.run(k * 512, 512), values.flatten()) for k in (0, 1))


def test_each_backward_that_reduces_adds_to_the_sums_and_only_the_last_reports() -> None:
    case = Case(boundary=False)
    case.backward(FIRST, {2: 1.0, 1: 2.0, 0: 3.0})
    assert case.states == [REDUCED] * 3
    assert not case.reported, "more will come"
    case.backward(LAST, {2: 10.0, 0: 30.0})
    assert case.states == [CONSUMED] * 3
    assert case.reported == [(0, 11.0), (1, 2.0), (2, 33.0)]


def test_the_first_sums_of_a_step_replace_those_of_the_step_before() -> None:
    case = Case(boundary=False)
    for value in (1.0, 5.0):
        case.backward(ONLY, dict.fromkeys((2, 1, 0), value))
        case.gradients.clear()
    assert case.values == [5.0] * 3


def test_backwards_before_the_boundary_stay_in_the_bucket_and_none_is_dropped() -> None:
    case = Case()
    case.backward(FIRST, {2: 1.0, 1: 2.0})
    assert case.states == [FILLING, FILLING, EMPTY]
    assert not case.comm.works
    case.backward(LAST, {2: 10.0, 0: 30.0})
    assert case.values == [11.0, 2.0, 30.0]


def test_full_buckets_go_to_host_memory_and_come_back() -> None:
    """In the middle of a backward, so that few are on the device; one that is not full goes when it ends."""
    case = Case(host=True, block=1024)
    used = case.pool.lend(1024, torch.float32)
    used.buffer.fill_(torch.nan)
    used.give_back()
    case.backward(FIRST, {2: 1.0})
    assert case.buckets.all[0].loan is None
    case.gradients.begin(AccumulationBoundary(first=False, last=False), LOSS)
    for index, value in {2: 4.0, 1: 2.0, 0: 3.0}.items():
        case.gradients.accept(index, torch.full((512,), value))
        assert (case.buckets.all[index == 0].loan is None) == (index < 2)
    case.gradients.finish()
    assert not case.comm.works
    case.backward(LAST, {1: 10.0})
    assert case.values == [5.0, 12.0, 3.0]
    case.gradients.close()


def test_a_bucket_that_waits_only_for_absent_gradients_is_reduced() -> None:
    case = Case()
    case.gradients.begin(ONLY, LOSS)
    for _ in range(2):
        case.gradients.absent([2])
    assert case.states == [IN_FLIGHT, EMPTY, EMPTY]
    case.gradients.accept(0, torch.full((512,), 3.0))
    case.gradients.absent([0, 1])
    assert case.states == [IN_FLIGHT] * 3
    case.gradients.finish()
    assert case.values == [0.0, 0.0, 3.0]


def test_after_a_discarded_backward_nothing_is_launched() -> None:
    """A rank learns of absent gradients, too, while it unwinds."""
    case = Case()
    case.gradients.begin(ONLY, LOSS)
    case.gradients.accept(1, torch.ones(512))
    case.gradients.abandon()
    case.gradients.absent([2, 1, 0])
    assert not case.comm.works
    assert case.states == [EMPTY] * 3


def test_a_reduction_that_has_ended_is_reported_with_the_next_gradient() -> None:
    case = Case(polls=True)
    case.gradients.begin(ONLY, LOSS)
    case.gradients.accept(2, torch.full((512,), 1.0))
    case.comm.works[0].wait()
    case.gradients.accept(1, torch.full((512,), 2.0))
    assert case.reported == [(0, 1.0)]
    assert case.states == [CONSUMED, IN_FLIGHT, EMPTY]
    case.gradients.finish()
    assert case.values == [1.0, 2.0, 0.0]


@pytest.mark.parametrize("backwards", [1, 2])
def test_a_step_of_unknown_length_reduces_when_it_is_settled(backwards: int) -> None:
    case = Case()
    case.backward(UNKNOWN, {2: 1.0, 1: 2.0})
    assert case.states == [EMPTY] * 3, "the first waits in autograd's memory"
    if backwards == 2:
        case.backward(AccumulationBoundary(first=False, last=None), {2: 10.0, 0: 30.0})
        assert case.states == [FILLING] * 3
    case.gradients.settle()
    assert case.states == [CONSUMED] * 3
    assert case.values == ([1.0, 2.0, 0.0] if backwards == 1 else [11.0, 2.0, 30.0])
    case.gradients.settle()
    assert len(case.comm.works) == 3, "a step that is tried again is not reduced again"


def test_a_backward_after_the_reduction_of_its_step_is_refused() -> None:
    case = Case()
    case.backward(UNKNOWN, {2: 1.0, 1: 2.0, 0: 3.0})
    case.gradients.settle()
    with pytest.raises(UsageError, match="zero_grad"):
        case.gradients.begin(AccumulationBoundary(first=False, last=None), LOSS)
    case.gradients.abandon()
    case.backward(UNKNOWN, {2: 7.0, 1: 7.0, 0: 7.0})
    case.gradients.settle()
    assert case.values == [7.0] * 3


@pytest.mark.parametrize("came", [(), (2,), (1,), (2, 1), (2, 1, 0)])
def test_a_discarded_step_leaves_nothing_and_nothing_in_flight(came: Sequence[int]) -> None:
    case = Case()
    case.gradients.begin(ONLY, LOSS)
    for index in came:
        case.gradients.accept(index, torch.full((512,), 100.0))
    case.gradients.abandon()
    assert case.states == [EMPTY] * 3
    assert all(work.done for work in case.comm.works), "a reduction still writes"
    assert case.pool.bytes == sum(t.nbytes for t in case.pool.free)
    case.backward(ONLY, {2: 1.0, 0: 3.0})
    assert case.values == [1.0, 0.0, 3.0]


def test_a_step_may_be_discarded_between_backwards_that_reduce() -> None:
    case = Case(boundary=False)
    case.backward(FIRST, {2: 1.0, 1: 2.0, 0: 3.0})
    assert case.states == [REDUCED] * 3
    case.gradients.abandon()
    assert case.states == [EMPTY] * 3


def test_a_reduction_that_fails_leaves_a_bucket_that_a_discarded_step_empties() -> None:
    case = Case()
    case.gradients.begin(ONLY, LOSS)
    case.gradients.accept(2, torch.ones(512))

    def fail() -> None:
        raise RuntimeError("a rank is gone")

    case.comm.works[0].wait = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="gone"):
        case.gradients.finish()
    assert case.states[0] is IN_FLIGHT
    case.gradients.abandon()
    assert case.states == [EMPTY] * 3


def test_a_late_gradient_of_a_bucket_under_way_is_no_silent_loss() -> None:
    case = Case()
    case.gradients.begin(ONLY, LOSS)
    case.gradients.accept(2, torch.ones(512))
    with pytest.raises(AssertionError, match="bucket 0"):
        case.buckets.write(2, torch.ones(512))


def test_nothing_is_cleared_under_a_reduction() -> None:
    case = Case()
    case.gradients.begin(ONLY, LOSS)
    case.gradients.accept(2, torch.ones(512))
    with pytest.raises(AssertionError, match="under way"):
        case.buckets.clear()
