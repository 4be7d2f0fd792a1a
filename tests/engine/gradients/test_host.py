"""Sums that are copied to host memory arrive there on a thread of their own."""

import threading

import torch
from torch import Tensor

from zbench.engine.gradients.host import HostSums
from zbench.engine.memory.kinds import PinnedHostMemory
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.works import Done

CPU = torch.device("cpu")


class Sleeping(Done):
    """A copy to the host that is made when the test says so. As on a device, only `wait` sleeps for it, and
    what is launched behind `release` does not change what it copies.
    """

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self._values = source.clone()
        self._target = target
        self._made = threading.Event()
        self.slept: list[str] = []

    def make(self) -> None:
        self._target.copy_(self._values)
        self._made.set()

    def wait(self) -> None:
        self.slept.append(threading.current_thread().name)
        assert self._made.wait(10), "whoever launches the copies waits for one of them"

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


def test_two_arrivals_do_not_stop_the_launching_thread() -> None:
    """Autograd's thread launches a backward's copies, and would launch no kernel while it waits for one."""
    host = Host()
    scratch = ScratchPool(CPU)
    writer = HostSums(host, lambda place, sums: place.add_(sums))
    places = [torch.zeros(4) for _ in range(2)]
    try:
        works = []
        for first in (True, False):
            for value, place in enumerate(places, start=1):
                target = scratch.lend(4, torch.float32)
                target.buffer.fill_(value)
                works.append(writer.add(target, place, first=first))
        assert not any(work.is_completed() for work in works)
        for copy in reversed(host.copies):  # the last one is there first
            copy.make()
        writer.settle()
        assert all(work.is_completed() for work in works)
        assert [place.tolist() for place in places] == [[2.0] * 4, [4.0] * 4]
        assert sum(buffer.nbytes for buffer in scratch.free) == scratch.bytes, "some is still lent"
        assert {name for copy in host.copies for name in copy.slept} == {"zbench offloaded sums"}
    finally:
        writer.close()
