"""The life of a bucket, by its transitions: each test fails where one comes too early, too late or never."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from zbench.engine.gradients.bucket import Buckets, BucketState
from zbench.engine.gradients.gradients import Gradients
from zbench.engine.gradients.storage import (
    BucketMemory,
    FromPool,
    KeptBuffer,
    RankSums,
    SendingMemory,
    SumsMemory,
)
from zbench.engine.memory.buffers import MemoryLayout
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.partition import Extent, GatherGroup, plan_layout
from zbench.engine.policies import AccumulationBoundary
from zbench.engine.protocols import Tag, Work
from zbench.engine.shard_layout import ShardedLayout
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.errors import UsageError

CPU = torch.device("cpu")
SIZES = [512, 512, 512]  # buckets in backward order: of parameters 2, 1 and 0
ONLY = AccumulationBoundary(first=True, last=True)
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
    """Gradients of three parameters, one in each bucket. how: options of `Buckets`."""

    def __init__(self, *, without_copy: bool = False, **how: Any) -> None:
        layout = plan_layout(SIZES, [GatherGroup((2, 1, 0))], shards=1, block_size=512)
        shard = ShardedLayout(layout, 0)
        memory = DeviceMemory(CPU)
        self.comm = LateCollectives()
        self.pool = ScratchPool(CPU)
        place = MemoryLayout.of([(memory, [Extent(0, layout.length)])])
        self.sums = RankSums(shard, place, CPU, self.comm, torch.float32, SumsMemory.ENGINE)
        self.buckets = Buckets(self.comm, self.sums, **{"in_flight": 10**6} | how)
        lender = FromPool(layout, self.pool, [torch.float32], without_copy)
        several = BucketMemory(KeptBuffer(layout.length, memory, torch.float32))
        sending = SendingMemory(BucketMemory(lender), several, True, [self.pool])
        self.gradients = Gradients(self.buckets, (), sending)
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


EMPTY, FILLING, IN_FLIGHT, _, CONSUMED = BucketState


def test_buckets_are_reduced_and_consumed_in_the_order_of_backward() -> None:
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


def test_a_parameter_without_a_gradient_has_a_zero_sum() -> None:
    case = Case()
    case.backward(ONLY, {2: 1.0, 1: 2.0, 0: 3.0})
    case.gradients.clear()
    case.backward(ONLY, {2: 5.0})
    assert case.values == [5.0, 0.0, 0.0]


def test_a_buffer_is_used_again_behind_its_reduction_only() -> None:
    case = Case(in_flight=0)
    case.backward(ONLY, {2: 1.0, 1: 2.0, 0: 3.0})
    assert case.values == [1.0, 2.0, 3.0]
    assert case.pool.bytes == 4 * 512, "one at a time"
    assert all(work.done for work in case.comm.works)


def test_the_elements_in_flight_are_bounded() -> None:
    case = Case(in_flight=1024)
    case.gradients.begin(ONLY, LOSS)
    for index in (2, 1, 0):
        case.gradients.accept(index, torch.ones(512))
    assert [work.done for work in case.comm.works] == [True, False, False]


def test_a_gradient_of_any_strides_is_written_in_order() -> None:
    case = Case(without_copy=True)
    values = torch.arange(512.0).view(16, 32)
    case.gradients.begin(ONLY, LOSS)
    case.gradients.accept(2, values)
    case.gradients.accept(1, values.t().contiguous().t())
    assert [work._send.shape for work in case.comm.works] == [(512,)] * 2
    case.gradients.finish()
    assert all(torch.equal(case.sums.sums.run(k * 512, 512), values.flatten()) for k in (0, 1))


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


@pytest.mark.parametrize("came", [(2,), (1,), (2, 1, 0)])
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
