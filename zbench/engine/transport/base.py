"""What all collectives over a process group share."""

import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from zbench.engine.protocols import Tag, Work
from zbench.engine.transport.agreement import GATHERS, REDUCTIONS, Agreement, Call
from zbench.engine.transport.buffers import ScratchPool, to_device
from zbench.engine.transport.watching import Watch, WatchedWork
from zbench.engine.transport.works import WorkerThread


class GroupCollectives(ABC):
    """Collectives over one process group, with receive buffers that are kept between calls."""

    in_rank_order = True
    """Whether reductions add in rank order; else in the backend's own, in the dtype that is sent."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.shard, self.shards = self.rank, self.world_size
        self.scratch = ScratchPool(device)
        self._following: WorkerThread | None = None
        store = group.get_group_store()
        # The same number on every rank: all make their engines together.
        self.store = PrefixStore(f"zbench/{store.add(f'zbench/{self.rank}', 1)}", store)
        self.agreement = Agreement(self.rank, self.world_size, self.store, partial(_end, weakref.ref(self)))
        self._watch = Watch(self.agreement)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        call = self.agreement.note(REDUCTIONS, tag, send.nbytes)
        return WatchedWork(self._reduce_scatter(send, out, call), call, self.agreement)

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        call = self.agreement.note(GATHERS, tag, flat.nbytes)
        return WatchedWork(self._all_gather(flat, call), call, self.agreement)

    def all_reduce(self, flat: Tensor, tag: Tag) -> None:
        """flat [W * n] = sum over ranks, in place; parts begin at 64-byte boundaries. Returns when the result
        may be read on the current stream.
        """
        self.reduce_scatter(flat, flat.chunk(self.world_size)[self.rank], tag).wait()
        self.all_gather(flat, tag).wait()

    def follow(self, work: Work, run: Callable[[], object]) -> Work:
        """Have `run`, which may call collectives and wait for them, follow `work`: here on a thread."""
        self._following = self._following or WorkerThread("replicas")
        return self._following.submit(lambda: (work.wait(), run()))

    @abstractmethod
    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work: ...

    @abstractmethod
    def _all_gather(self, flat: Tensor, call: Call) -> Work: ...

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        gathered = torch.empty((self.world_size, *values.shape), dtype=values.dtype, device=self.device)
        gathered[self.rank] = to_device(values, self.device)
        if values.numel():
            self.all_gather(gathered.view(-1), tag).wait()
        return gathered

    gather_shards = all_gather_small

    def add_up(self, words: Tensor, tag: Tag) -> Tensor:
        return self.all_gather_small(words, tag).sum(dim=0)

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Work:
        call = self.agreement.note(GATHERS, tag, tensor.nbytes)
        work = launched(dist.broadcast(tensor, group_src=source, group=self.group, async_op=True))
        return WatchedWork(work, call, self.agreement)

    def barrier(self) -> None:
        self.agreement.process.check()
        dist.barrier(self.group)

    def bytes_by_category(self) -> dict[str, int]:
        """Return what its receive buffers hold now."""
        return self.scratch.bytes_by_category()

    def release_scratch(self) -> None:
        """Free the receive buffers that are not in use."""
        self.scratch.drop()

    def end(self) -> None:
        """Disconnect this rank, so that ranks that wait for it get an error."""

    def close(self) -> None:
        """Release what was made for this engine alone. On an error's way out, other ranks hear of it."""
        if self._following is not None:
            self._following.close()
        self._watch.close()
        error = sys.exception()
        why = "it has closed its engine" if error is None else f"{type(error).__name__}: {error}"
        self.agreement.leave(why)


def _end(comm: "weakref.ref[GroupCollectives]") -> None:
    if (alive := comm()) is not None:
        alive.end()


def launched(work: dist.Work | None) -> Work:
    """Return `work`, which torch returns as None only on a rank outside the group."""
    assert work is not None, "the process group does not contain this rank"
    return work
