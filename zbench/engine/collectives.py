"""The only file that knows gloo from NCCL: how each backend moves the same bytes fastest, chosen once.

Measured on gloo (2 ranks on 2 cores, 109 MB of float32): its own reduce-scatter takes 147 ms, an all-to-all
and a local sum 35, sends and receives between all pairs and a local sum 28; its own all-gather 113, a
broadcast a rank 28, sends and receives 21. No composition moves more bytes than another, and the local sum
adds in rank order, so the bits depend on neither a backend's algorithm nor the bucket size.
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
    """Gloo: every rank sends each part to its owner, which adds them in rank order; gathers are broadcasts.

    Reductions and gathers have a process group each, so they need no order relative to one another.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(group, device)
        store = group.get_group_store()
        count = store.add(f"zbench/{self.rank}", 1)  # the same on every rank: all make their engines together
        self._exchanges, self._gathers = (
            dist.ProcessGroupGloo(
                dist.PrefixStore(f"zbench/{kind}/{count}", store),  # type: ignore[attr-defined]
                self.rank,
                self.world_size,
                _TIMEOUT,
            )
            for kind in ("exchanges", "gathers")
        )

    def reduce_scatter(self, send: Tensor, out: Tensor) -> Work:
        """Needs memory for the other ranks' parts only; this rank's own is read from `send`."""
        parts, others = list(send.chunk(self.world_size)), self.world_size - 1
        length = parts[0].numel()
        buffer = self.scratch.take(others * length, send.dtype)
        received = list(buffer[: others * length].split(length))  # type: ignore[no-untyped-call]
        received.insert(self.rank, parts[self.rank])
        works = _exchange(self._exchanges, self.rank, parts, received)

        def finish() -> None:
            sum_in_rank_order(out, received)
            self.scratch.give(buffer)

        return Then(All(works), finish)

    def all_gather(self, flat: Tensor) -> Work:
        parts = flat.chunk(self.world_size)
        return All(_exchange(self._gathers, self.rank, [parts[self.rank]] * self.world_size, parts))

    def all_gather_small(self, values: Tensor) -> Tensor:
        gathered = values.new_empty((self.world_size, *values.shape))
        dist.all_gather(list(gathered.unbind(0)), values, group=self.group)
        return gathered

    def close(self) -> None:
        self._exchanges.shutdown()
        self._gathers.shutdown()


def _exchange(
    group: dist.ProcessGroupGloo, rank: int, send: Sequence[Tensor], receive: Sequence[Tensor]
) -> list[Work]:
    """Send send[r] to every other rank r, receive receive[r] from it; all at once, in an order that
    spreads.
    """
    works: list[Work] = []
    for distance in range(1, len(send)):
        source, target = (rank - distance) % len(send), (rank + distance) % len(send)
        works.append(group.recv([receive[source]], source, 0))  # type: ignore[attr-defined]
        works.append(group.send([send[target]], target, 0))  # type: ignore[attr-defined]
    return works


class Native(_Grouped):
    """NCCL and other backends: their own all-gather, and reduce-scatter (own order of sums) in one dtype."""

    def reduce_scatter(self, send: Tensor, out: Tensor) -> Work:
        if send.dtype == out.dtype:
            return _launched(dist.reduce_scatter_tensor(out, send, group=self.group, async_op=True))
        buffer = self.scratch.take(send.numel(), send.dtype)
        received = buffer[: send.numel()]
        work = dist.all_to_all_single(received, send, group=self.group, async_op=True)

        def finish() -> None:
            sum_in_rank_order(out, received.chunk(self.world_size))
            self.scratch.give(buffer)

        return Then(_launched(work), finish)

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
