"""The only file that knows gloo from NCCL: how each backend moves the same bytes fastest, chosen once.

Measured on gloo (2 ranks, 109 MB): its own reduce-scatter takes 147 ms against 53 for an all-to-all
followed by a local sum, its all-gather 113 against 37 for one broadcast a rank. Both compositions also sum
in rank order and send no byte more than the native operations, so the bits depend on neither the backend's
algorithm nor the bucket size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Collectives, Work
from zbench.engine.sums import sum_in_rank_order

_TIMEOUT = timedelta(minutes=30)


class Done:
    """The work of a collective that has nothing left to do."""

    def wait(self) -> None:
        """Return at once."""


@dataclass(slots=True)
class All:
    """Several works as one."""

    works: Sequence[Work]

    def wait(self) -> None:
        """Wait for each in turn."""
        for work in self.works:
            work.wait()


@dataclass(slots=True)
class Then:
    """A work, and what must follow before its result may be read."""

    work: Work
    finish: Callable[[], None]

    def wait(self) -> None:
        """Wait, then do what follows."""
        self.work.wait()
        self.finish()


class Once:
    """A work that may be waited for from several threads; whoever comes first does it."""

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work
        self._lock = Lock()

    def wait(self) -> None:
        """Wait, unless somebody has."""
        with self._lock:
            if self._work is not None:
                self._work.wait()
                self._work = None


class SingleProcess:
    """A world of one rank: nothing to send."""

    rank, world_size = 0, 1

    def reduce_scatter(self, send: Tensor, out: Tensor) -> Work:
        if send.data_ptr() != out.data_ptr():
            out.copy_(send)
        return Done()

    def all_gather(self, flat: Tensor) -> Work:
        return Done()

    def all_gather_small(self, values: Tensor) -> Tensor:
        return values.cpu().unsqueeze(0)

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        return Done()

    def bytes_by_category(self) -> dict[str, int]:
        return {}

    def barrier(self) -> None:
        return

    def close(self) -> None:
        return


@dataclass(slots=True)
class ScratchPool:
    """Receive buffers, kept between uses; `bytes` is what it holds now, in use or not."""

    device: torch.device
    bytes: int = 0
    _free: list[Tensor] = field(default_factory=list)

    def take(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised buffer of at least `numel` elements: the smallest kept one, else a new
        one.
        """
        fitting = [t for t in self._free if t.dtype == dtype and t.numel() >= numel]
        if not fitting:
            self.bytes += numel * dtype.itemsize
            return torch.empty(numel, dtype=dtype, device=self.device)
        best = min(fitting, key=Tensor.numel)
        self._free = [t for t in self._free if t is not best]
        return best

    def give(self, buffer: Tensor) -> None:
        """Take back what `take` returned; it must be used no more."""
        self._free.append(buffer)

    def drop(self) -> None:
        """Let go of every buffer that is not in use."""
        self.bytes -= sum(t.nbytes for t in self._free)
        self._free.clear()


class _Grouped:
    """What gloo and NCCL share."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.scratch = ScratchPool(device)

    def _exchange_and_sum(self, send: Tensor, out: Tensor) -> Work:
        buffer = self.scratch.take(send.numel(), send.dtype)
        received = buffer[: send.numel()]
        work = dist.all_to_all_single(received, send, group=self.group, async_op=True)

        def finish() -> None:
            sum_in_rank_order(out, received.chunk(self.world_size))
            self.scratch.give(buffer)

        return Then(_launched(work), finish)

    def bytes_by_category(self) -> dict[str, int]:
        """Return what its receive buffers hold now."""
        return {"buckets": self.scratch.bytes}

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        return _launched(dist.broadcast(tensor, group_src=source, group=self.group, async_op=True))

    def barrier(self) -> None:
        dist.barrier(self.group)

    def close(self) -> None:
        """Let go of what was made for this engine alone."""


class Gloo(_Grouped):
    """Gloo: all-to-all and an ordered sum; one broadcast a rank in place of an all-gather.

    Gathers run in a process group of their own, so that they need no order relative to the reductions.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(group, device)
        store = group.get_group_store()
        count = store.add(f"zbench/{self.rank}", 1)  # the same on every rank: all make their engines together
        store = dist.PrefixStore(f"zbench/gathers/{count}", store)
        self.gathers = dist.ProcessGroupGloo(store, self.rank, self.world_size, _TIMEOUT)

    def reduce_scatter(self, send: Tensor, out: Tensor) -> Work:
        return self._exchange_and_sum(send, out)

    def all_gather(self, flat: Tensor) -> Work:
        return All([self._broadcast(part, r) for r, part in enumerate(flat.chunk(self.world_size))])

    def _broadcast(self, part: Tensor, source: int) -> Work:
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self.gathers.broadcast([part], options)

    def all_gather_small(self, values: Tensor) -> Tensor:
        gathered = values.new_empty((self.world_size, *values.shape))
        dist.all_gather(list(gathered.unbind(0)), values, group=self.group)
        return gathered

    def close(self) -> None:
        self.gathers.shutdown()


class Native(_Grouped):
    """NCCL and other backends: their own all-gather, and reduce-scatter (own order of sums) in one dtype."""

    def reduce_scatter(self, send: Tensor, out: Tensor) -> Work:
        if send.dtype != out.dtype:
            return self._exchange_and_sum(send, out)
        return _launched(dist.reduce_scatter_tensor(out, send, group=self.group, async_op=True))

    def all_gather(self, flat: Tensor) -> Work:
        part = flat.chunk(self.world_size)[self.rank]
        return _launched(dist.all_gather_into_tensor(flat, part, group=self.group, async_op=True))

    def all_gather_small(self, values: Tensor) -> Tensor:
        on_device = values.to(self.device)
        gathered = on_device.new_empty((self.world_size, *values.shape))
        dist.all_gather(list(gathered.unbind(0)), on_device, group=self.group)
        return gathered.cpu()


def _launched(work: dist.Work | None) -> Work:
    assert work is not None, "the process group does not contain this rank"
    return work


def choose_collectives(
    group: dist.ProcessGroup | None, device: torch.device
) -> SingleProcess | Gloo | Native:
    """Return the collectives of `group` (None: the default group, or a world of one where there is none)."""
    if group is None and not dist.is_initialized():
        return SingleProcess()
    group = group or dist.group.WORLD
    assert group is not None
    if dist.get_world_size(group) == 1:
        return SingleProcess()
    return Gloo(group, device) if dist.get_backend(group) == "gloo" else Native(group, device)


__all__ = [
    "All",
    "Collectives",
    "Done",
    "Gloo",
    "Native",
    "Once",
    "ScratchPool",
    "SingleProcess",
    "Then",
    "choose_collectives",
]
