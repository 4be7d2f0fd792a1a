"""Sums of gradients on their way to another memory than the model's device, where later ones are added."""

from collections import deque
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.memory.staging import StagingPool
from zbench.engine.transport.worker_thread import QueuedWork, WorkerThread

_STAGED_AT_ONCE = 4


class OffloadedSums:
    """Copies sums to `memory` and adds them there: one thread completes them in the order in which they came.

    So once the work of one is done, so is every earlier addition to the same place.
    """

    def __init__(self, memory: Memory, add: Callable[[Tensor, Tensor], None]) -> None:
        """add: adds sums (second) to what stands in a place (first); called on the thread."""
        self._memory, self._add = memory, add
        self._staging = StagingPool(memory)
        self._thread: WorkerThread | None = None
        self._works: deque[tuple[QueuedWork, Tensor | None]] = deque()

    def bring(self, sums: Tensor, place: Tensor, *, first: bool) -> tuple[QueuedWork, Copy]:
        """Start to write sums to `place`, or to add them; return the work, and the copy out of `sums`."""
        self._thread = self._thread or WorkerThread("offloaded sums")
        buffer = None
        if first:
            copy = self._memory.copy_in(sums, place)
            work = self._thread.submit(copy.wait)
        else:
            while len(self._works) >= _STAGED_AT_ONCE:
                self._finish_oldest()
            buffer = self._staging.take(sums.numel(), torch.float32)
            staged = buffer[: sums.numel()]
            copy = self._memory.copy_in(sums, staged)
            work = self._thread.submit(partial(self._merge, copy, place, staged))
        self._works.append((work, buffer))
        return work, copy

    def settle(self) -> None:
        """Return when everything is where it belongs."""
        while self._works:
            self._finish_oldest()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what staging holds now."""
        return {f"{self._memory.prefix}buckets": self._staging.bytes}

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _merge(self, copy: Copy, place: Tensor, staged: Tensor) -> None:
        copy.wait()
        self._add(place, staged)

    def _finish_oldest(self) -> None:
        work, buffer = self._works.popleft()
        work.wait()
        if buffer is not None:
            self._staging.give(buffer)
