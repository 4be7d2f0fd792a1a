"""What every kind of reduced-gradient buffer promises, in every kind of memory."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.engine.far_memory.copies import Copies
from tests.engine.far_memory.memory import FarMemory
from tests.engine.gradients.worlds import WORLD, config_for
from tests.engine.threads import ThreadCollectives, on_ranks
from zbench.engine.compiled.compile import StepReducedGradientBuffer
from zbench.engine.gradients.reduced_buffers import (
    OffloadedSums,
    ReducedGradientBuffer,
    TransientReducedGradientBuffer,
    WholeReducedGradientBuffer,
)
from zbench.engine.memory.kinds import PinnedHostMemory
from zbench.engine.partition import Bucket
from zbench.engine.shard_layout import ShardedLayout, WholeLayout
from zbench.engine.transport.buffers import ScratchPool


def reduced(bucket: Bucket, backward: int) -> Tensor:
    """Return the whole sums of one bucket after a reduction: integers that differ everywhere."""
    return torch.arange(bucket.start, bucket.stop).remainder(251).float() + 1000.0 * backward


class ReducedGradientBufferSuite:
    """Inherited by the test of each implementation."""

    kind: type[ReducedGradientBuffer]
    shard_type: type[WholeLayout | ShardedLayout] = ShardedLayout
    frees = False

    def run(
        self, backwards: int, check: Callable[[ReducedGradientBuffer], object], **options: object
    ) -> None:
        """Reduce on every rank so often, twice; call `check` on the settled buffer each time."""

        def body(comm: ThreadCollectives) -> None:
            buffer = self.kind(config_for(comm, self.shard_type, **options))  # type: ignore[arg-type]
            for _ in range(2):
                for k in range(backwards):
                    buffer.begin(first=k == 0, last=k == backwards - 1)
                    for bucket in buffer.shard.layout.buckets:
                        target = buffer.target(bucket)
                        mine = reduced(bucket, k).chunk(WORLD)[comm.rank]
                        target[: mine.numel()] = mine
                        arrival = buffer.store(bucket, target)
                        if arrival is not None:
                            arrival.wait()
                buffer.settle()
                check(buffer)
                buffer.release()
            buffer.close()

        on_ranks(WORLD, body)

    def expected(self, buffer: ReducedGradientBuffer, backwards: int) -> Tensor:
        shard, local = buffer.shard, torch.zeros(buffer.shard.length)
        for bucket in shard.layout.buckets:
            total = sum((reduced(bucket, k) for k in range(backwards)), torch.zeros(bucket.length))
            at = 0
            for rank, part in enumerate(total.chunk(WORLD)):
                start = bucket.start // WORLD
                if shard.keeps_all:
                    start = bucket.start + rank * part.numel()
                elif rank != shard.rank:
                    continue
                local[start : start + part.numel()] = part
                at += part.numel()
        return local

    @pytest.mark.parametrize("backwards", [1, 2, 3])
    def test_sums_of_a_step_are_there_after_settle_and_the_next_step_begins_anew(
        self, backwards: int
    ) -> None:
        def check(buffer: ReducedGradientBuffer) -> None:
            assert torch.equal(buffer.sums.cpu(), self.expected(buffer, backwards))

        self.run(backwards, check)

    def test_sums_of_several_backwards_are_rounded_to_the_accumulation_dtype(self) -> None:
        def check(buffer: ReducedGradientBuffer) -> None:
            exact = self.expected(buffer, 2)
            assert torch.equal(buffer.sums.cpu(), exact.to(torch.bfloat16).float())
            assert not torch.equal(buffer.sums.cpu(), exact)

        self.run(2, check, accumulation=torch.bfloat16)

    def test_it_tells_what_it_holds(self) -> None:
        held: list[int] = []
        self.run(1, lambda buffer: held.append(buffer.bytes_by_category()["gradients"]))
        assert held
        assert all(count > 0 for count in held)

    def test_release_frees_what_is_not_kept(self) -> None:
        kept: list[int] = []

        def body(comm: ThreadCollectives) -> None:
            buffer = self.kind(config_for(comm, self.shard_type))
            buffer.begin(first=True, last=True)
            for bucket in buffer.shard.layout.buckets:
                buffer.store(bucket, buffer.target(bucket))
            buffer.settle()
            buffer.release()
            kept.append(buffer.bytes_by_category()["gradients"])

        on_ranks(WORLD, body)
        assert all((count == 0) == self.frees for count in kept)


class TestSharded(ReducedGradientBufferSuite):
    kind = ReducedGradientBuffer

    @pytest.mark.parametrize("backwards", [1, 2, 3])
    @pytest.mark.parametrize("offloaded", [1, 2])
    def test_the_same_sums_in_memory_that_is_reached_by_late_copies(
        self, backwards: int, offloaded: int
    ) -> None:
        def check(buffer: ReducedGradientBuffer) -> None:
            assert torch.equal(buffer.sums.cpu(), self.expected(buffer, backwards))

        copies = Copies(seed=offloaded)
        self.run(backwards, check, host=FarMemory(copies), offloaded=offloaded)
        assert copies.close() == []
        assert copies.started > 0


class TestTransient(ReducedGradientBufferSuite):
    kind, frees = TransientReducedGradientBuffer, True


class TestStep(ReducedGradientBufferSuite):
    kind, frees = StepReducedGradientBuffer, True


class TestWhole(ReducedGradientBufferSuite):
    kind, shard_type = WholeReducedGradientBuffer, WholeLayout


CPU = torch.device("cpu")


class Sleeping:
    """A copy to the host that is made when the test says so. As on a device, only `wait` sleeps for it, and
    what is launched behind `release` does not change what it copies.
    """

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self._values, self._target, self._made = source.clone(), target, threading.Event()
        self.slept: list[str] = []

    def make(self) -> None:
        self._target.copy_(self._values)
        self._made.set()

    def wait(self) -> None:
        self.slept.append(threading.current_thread().name)
        assert self._made.wait(10), "whoever launches the copies waits for one of them"

    def release(self) -> None:
        """Order the device's stream behind the copy."""

    def is_completed(self) -> bool:
        return self._made.is_set()


class Host(PinnedHostMemory):
    """Remembers the copies that it starts."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.copies: list[Sleeping] = []

    def copy_in(self, source: Tensor, target: Tensor) -> Sleeping:
        self.copies.append(Sleeping(source, target))
        return self.copies[-1]


def test_two_arrivals_at_once_do_not_stop_the_thread_that_launches() -> None:
    """Autograd's thread launches a backward's copies, and would launch no kernel while it waits for one."""
    host = Host()
    writer = OffloadedSums(host, ScratchPool(CPU), lambda place, sums: place.add_(sums))
    places = [torch.zeros(4) for _ in range(2)]
    try:
        works = []
        for first in (True, False):
            for value, place in enumerate(places, start=1):
                target = writer.target(place, first=first)
                target[:4] = value
                works.append(writer.write(target, place, first=first))
        assert not any(work.is_completed() for work in works)
        for copy in reversed(host.copies):  # the last one is there first
            copy.make()
        writer.settle()
        assert all(work.is_completed() for work in works)
        assert [place.tolist() for place in places] == [[2.0] * 4, [4.0] * 4]
        assert {name for copy in host.copies for name in copy.slept} == {"zbench offloaded sums"}
    finally:
        writer.close()
