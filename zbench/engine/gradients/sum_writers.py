"""How reduced sums get into the memory that keeps them: written there directly, or copied from scratch
memory.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.protocols import Work
from zbench.engine.transport.buffers import ScratchPool, StagingPool
from zbench.engine.transport.works import QueuedWork, WorkerThread

_STAGED_AT_ONCE = 4
_SCRATCH_COPIES_AT_ONCE = 2

Add = Callable[[Tensor, Tensor], None]
"""Adds sums (second) to what is in a place (first)."""


class SumWriter(ABC):
    """Writes the sums of one bucket after the other to their places, or adds them there."""

    @abstractmethod
    def target(self, place: Tensor, *, first: bool) -> Tensor:
        """Return what the reduction of the sums for `place` writes to, at least as long."""

    @abstractmethod
    def write(self, target: Tensor, place: Tensor, *, first: bool) -> Work | None:
        """Take reduced sums from `target`; return what to wait for until they are in `place`, if they are
        not.
        """

    def settle(self) -> None:
        """Return when all sums are in their places."""

    def close(self) -> None:
        """End what runs in the background."""

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        return {}


def sum_writer(memory: Memory, device: torch.device, scratch: ScratchPool, add: Add) -> SumWriter:
    """Return what writes sums that are reduced on `device` to `memory`."""
    if memory.device.type == device.type:
        return DirectSums(scratch, add)
    return OffloadedSums(memory, scratch, add)


class DirectSums(SumWriter):
    """A reduction writes a step's first sums to their places; later ones are added from scratch memory."""

    def __init__(self, scratch: ScratchPool, add: Add) -> None:
        self._scratch, self._add = scratch, add

    def target(self, place: Tensor, *, first: bool) -> Tensor:
        return place if first else self._scratch.take(place.numel(), torch.float32)

    def write(self, target: Tensor, place: Tensor, *, first: bool) -> None:
        if not first:
            self._add(place, target[: place.numel()])
            self._scratch.give(target)


class OffloadedSums(SumWriter):
    """Copies sums to `memory` and adds them there; one thread completes them in the order in which they came.

    So when the work of one is done, every earlier addition to the same place is done, too.
    """

    def __init__(self, memory: Memory, scratch: ScratchPool, add: Add) -> None:
        """add: called on the thread."""
        self._memory, self._scratch, self._add = memory, scratch, add
        self._staging = StagingPool(memory)
        self._thread: WorkerThread | None = None
        self._works: deque[tuple[QueuedWork, Tensor | None]] = deque()
        self._scratch_copies: deque[tuple[Copy, Tensor]] = deque()

    def target(self, place: Tensor, *, first: bool) -> Tensor:
        return self._scratch.take(place.numel(), torch.float32)

    def write(self, target: Tensor, place: Tensor, *, first: bool) -> QueuedWork:
        self._reuse_scratch(keep=_SCRATCH_COPIES_AT_ONCE - 1)
        self._thread = self._thread or WorkerThread("offloaded sums")
        sums, buffer = target[: place.numel()], None
        if first and sums.dtype == place.dtype:
            copy = self._memory.copy_in(sums, place)
            work = self._thread.submit(copy.wait)
        else:
            while len(self._works) >= _STAGED_AT_ONCE:
                self._finish_oldest()
            buffer = self._staging.take(sums.numel(), sums.dtype)
            staged = buffer[: sums.numel()]
            copy = self._memory.copy_in(sums, staged)
            merge = Tensor.copy_ if first else self._add
            work = self._thread.submit(partial(_merge, copy, merge, place, staged))
        self._works.append((work, buffer))
        self._scratch_copies.append((copy, target))
        return work

    def settle(self) -> None:
        while self._works:
            self._finish_oldest()
        self._reuse_scratch(keep=0)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def bytes_by_category(self) -> dict[str, int]:
        return {f"{self._memory.prefix}buckets": self._staging.bytes}

    def _finish_oldest(self) -> None:
        work, buffer = self._works.popleft()
        work.wait()
        if buffer is not None:
            self._staging.give(buffer)

    def _reuse_scratch(self, keep: int) -> None:
        """Return scratch memory to its pool when it has been copied, until at most `keep` copies
        are running.
        """
        while len(self._scratch_copies) > keep:
            copy, scratch = self._scratch_copies.popleft()
            copy.release()
            self._scratch.give(scratch)


def _merge(copy: Copy, merge: Callable[[Tensor, Tensor], object], place: Tensor, staged: Tensor) -> None:
    copy.wait()
    merge(place, staged)
