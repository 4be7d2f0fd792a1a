"""Gradients on their way to host memory, where one thread adds them up."""

from collections import deque
from collections.abc import Callable
from functools import partial

from torch import Tensor

from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.transport.buffers import Loan, ScratchPool
from zbench.engine.transport.works import QueuedWork, WorkerThread

_STAGED_AT_ONCE = 4
_SCRATCH_COPIES_AT_ONCE = 2


class HostSums:
    """Copies sums to `memory` and adds them there; one thread completes them in the order in which they came.

    So when the work of one is done, every earlier addition to the same place is done, too.
    """

    def __init__(self, memory: Memory, merge: Callable[[Tensor, Tensor], object]) -> None:
        """merge: adds sums (second) to a place (first), on the thread."""
        self._memory, self._merge = memory, merge
        self.staging = ScratchPool(memory.device, memory)
        self._thread = WorkerThread("offloaded sums")
        self._works: deque[tuple[QueuedWork, Loan]] = deque()
        self._copies: deque[tuple[Copy, Loan]] = deque()

    def add(self, source: Loan, place: Tensor, *, first: bool) -> QueuedWork:
        """Take `source`, in scratch memory, for `place`, whose values the `first` replaces; return what to
        wait for until it is there.
        """
        self._reuse_scratch(keep=_SCRATCH_COPIES_AT_ONCE - 1)
        direct = first and source.buffer.dtype == place.dtype
        while not direct and len(self._works) >= _STAGED_AT_ONCE:
            self._finish_oldest()
        there = Loan(place) if direct else self.staging.lend(place.numel(), source.buffer.dtype)
        copy = self._memory.copy_in(source.buffer, there.buffer)
        merge = partial(Tensor.copy_ if first else self._merge, place, there.buffer)
        work = self._thread.submit(copy.wait if direct else lambda: (copy.wait(), merge()))
        self._works.append((work, there))
        self._copies.append((copy, source))
        return work

    def settle(self) -> None:
        """Return when all sums are in their places."""
        while self._works:
            self._finish_oldest()
        self._reuse_scratch(keep=0)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _finish_oldest(self) -> None:
        work, there = self._works.popleft()
        work.wait()
        there.give_back()

    def _reuse_scratch(self, keep: int) -> None:
        """Give scratch memory back when it has been copied, until at most `keep` copies are running."""
        while len(self._copies) > keep:
            copy, source = self._copies.popleft()
            copy.release()
            source.give_back()
