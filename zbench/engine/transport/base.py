"""What all collectives over a process group share."""

import weakref
from abc import ABC, abstractmethod
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from zbench.engine.protocols import Tag, Work
from zbench.engine.transport.agreement import GATHERS, REDUCTIONS, Agreement, Attended, Call, Watch
from zbench.engine.transport.buffers import ScratchPool, to_device


class GroupCollectives(ABC):
    """Collectives over one process group, with receive buffers that are kept between calls."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, shards: int | None = None) -> None:
        """shards: what reductions are scattered into; as many as ranks where it is None. Gathers are among
        all ranks.
        """
        self.group, self.device = group, device
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.shards = self.world_size if shards is None else shards
        self.shard = self.rank % self.shards
        self.scratch = ScratchPool(device)
        store = group.get_group_store()
        # The same number on every rank: all make their engines together.
        self.store = PrefixStore(f"zbench/{store.add(f'zbench/{self.rank}', 1)}", store)
        self.agreement = Agreement(self.rank, self.world_size, self.store, partial(_end, weakref.ref(self)))
        self._watch = Watch(self.agreement)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        call = self.agreement.note(REDUCTIONS, tag, send.nbytes)
        return Attended(self._reduce_scatter(send, out, call), call, self.agreement)

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        call = self.agreement.note(GATHERS, tag, flat.nbytes)
        return Attended(self._all_gather(flat, call), call, self.agreement)

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
        return Attended(work, call, self.agreement)

    def barrier(self) -> None:
        dist.barrier(self.group)

    def bytes_by_category(self) -> dict[str, int]:
        """Return what its receive buffers hold now."""
        return {"buckets": self.scratch.bytes}

    def release_scratch(self) -> None:
        """Free the receive buffers that are not in use."""
        self.scratch.drop()

    def end(self) -> None:
        """Disconnect this rank, so that ranks that wait for it get an error."""

    def close(self) -> None:
        """Release what was made for this engine alone."""
        self._watch.close()
        self.agreement.leave("it has closed its engine")


def _end(comm: "weakref.ref[GroupCollectives]") -> None:
    if (alive := comm()) is not None:
        alive.end()


def launched(work: dist.Work | None) -> Work:
    """Return `work`, which torch returns as None only on a rank outside the group."""
    assert work is not None, "the process group does not contain this rank"
    return work
