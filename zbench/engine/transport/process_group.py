"""The collectives of NCCL and of other backends that need no composition, and groups of some of the ranks."""

import sys
from collections.abc import Callable
from functools import partial
from threading import Thread
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Tag, Work
from zbench.engine.transport import buffers
from zbench.engine.transport.agreement import GATHERS, REDUCTIONS, Call
from zbench.engine.transport.base import GroupCollectives, launched
from zbench.engine.transport.buffers import to_device
from zbench.engine.transport.neighbours import Neighbour
from zbench.engine.transport.sums import sum_in_rank_order
from zbench.engine.transport.watching import WatchedWork
from zbench.engine.transport.works import OnStream, Then
from zbench.errors import UsageError


class ProcessGroupCollectives(GroupCollectives):
    """gathers: another group of the same ranks, so that no gather waits behind a reduction in one queue.

    in_rank_order: each rank sends every part to its owner, which adds them in one pass, on a stream of its
    own. A backend's own reduce-scatter moves as many bytes, and adds in an order of its own that depends on
    sizes and links.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        gathers: dist.ProcessGroup | None = None,
        *,
        in_rank_order: bool = True,
    ) -> None:
        super().__init__(group, device)
        self._gathers = gathers or group
        self.in_rank_order = in_rank_order
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._is_ended = False
        self.agreement.device = buffers.streams_of(device)
        if self.agreement.device is not None:
            self.agreement.neighbour = Neighbour(self.rank, self.world_size, self.store)
        self._connect()

    def _connect(self) -> None:
        """Use every communicator once, in every way, and wait for it. NCCL makes one, and its connections, at
        their first use: a backward would wait there for ranks that wait for its gather.
        """
        sample = torch.zeros(self.world_size, device=self.device)
        if self.in_rank_order:
            dist.all_to_all_single(torch.empty_like(sample), sample, group=self.group)
        else:
            dist.reduce_scatter_tensor(torch.empty_like(sample[:1]), sample, group=self.group)
        for group in (self.group, self._gathers):
            gathered = torch.empty(self.world_size, device=self.device)
            dist.all_gather_into_tensor(gathered, sample[:1], group=group)
            dist.all_reduce(sample, group=group)
            dist.broadcast(sample, group_src=0, group=group)
        self.agreement.attend()

    def end(self) -> None:
        """Abort the communicators: what waits for them on the device goes on, with values of no meaning.

        Each in a thread of its own, so all at once: an abort returns when the device is idle, which waits for
        calls of every other communicator (pytorch/pytorch#119797).
        """
        if (device := self.agreement.device) is None or self._is_ended:
            return
        self._is_ended = True

        def abort(group: dist.ProcessGroup) -> None:
            device.enter()
            group._get_backend(self.device).abort()

        for group in {self.group, self._gathers}:
            Thread(target=abort, args=(group,), daemon=True).start()

    def close(self) -> None:
        """On an error's way out the other ranks make no further calls: abort what is in flight."""
        super().close()
        if sys.exception() is not None:
            self.end()
        if self.agreement.neighbour is not None:
            self.agreement.neighbour.close()

    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work:
        if not self.in_rank_order and send.dtype == out.dtype:
            return launched(dist.reduce_scatter_tensor(out, send, group=self.group, async_op=True))
        loan = self.scratch.lend(send.numel() if self.in_rank_order else out.numel(), send.dtype)
        received = loan.buffer
        if self.in_rank_order:
            parts = received.chunk(self.world_size)
            work = dist.all_to_all_single(received, send, group=self.group, async_op=True)
            added = self.follow(launched(work), lambda: sum_in_rank_order(out, parts))
        else:
            work = dist.reduce_scatter_tensor(received, send, group=self.group, async_op=True)
            added = self.follow(launched(work), lambda: out.copy_(received))
        return Then(added, loan.give_back)

    def all_reduce(self, flat: Tensor, tag: Tag) -> None:
        if self.in_rank_order:
            super().all_reduce(flat, tag)
        else:
            call = self.agreement.note(REDUCTIONS, tag, flat.nbytes)
            work = launched(dist.all_reduce(flat, group=self.group, async_op=True))
            WatchedWork(work, call, self.agreement).wait()

    def follow(self, work: Work, run: Callable[[], object]) -> Work:
        """Have it follow on a stream of its own, where there are streams: what is computed does not wait."""
        return Then(work, run) if self._stream is None else OnStream(self._stream, work, run)

    def add_up(self, words: Tensor, tag: Tag) -> Tensor:
        """Integers: a backend's own reduction gives the sum, whatever its order."""
        total = to_device(words, self.device)
        call = self.agreement.note(GATHERS, tag, total.nbytes)
        work = launched(dist.all_reduce(total, group=self._gathers, async_op=True))
        WatchedWork(work, call, self.agreement).wait()
        return total

    def _all_gather(self, flat: Tensor, call: Call) -> Work:
        length = flat.numel() // self.world_size
        part = flat.narrow(0, self.rank * length, length)
        return launched(dist.all_gather_into_tensor(flat, part, group=self._gathers, async_op=True))


def gathering_group(group: dist.ProcessGroup, device: torch.device) -> dist.ProcessGroup:
    """Return another group of the same ranks; every one of them calls this. It is a communicator of its own:
    what one communicator is given runs in order, and a weight would wait behind all reductions.
    """
    return subgroup(group, dist.get_world_size(group), device)


_Key = tuple[int, torch.device, bool]
_SUBGROUPS: WeakKeyDictionary[dist.ProcessGroup, dict[_Key, dist.ProcessGroup]] = WeakKeyDictionary()


def subgroup(
    group: dist.ProcessGroup, size: int, device: torch.device, *, across: bool = False
) -> dist.ProcessGroup:
    """Return a process group of `size` consecutive ranks of `group`, this rank among them, or of the ranks
    `across` such groups that have the same place in theirs. It is for tensors of `device` only, with the
    backend and the timeout that `group` has for them.

    It is made once, and ends with the default group. To destroy an NCCL communicator alone is a collective of
    its own: a rank would wait there for one that has failed. Every rank of `group` calls it, and `size`
    divides their number. UsageError where they could not agree on a name.
    """
    groups = _SUBGROUPS.setdefault(group, {})
    key = (size, device, across)
    if key not in groups:
        groups[key] = _new_subgroup(group, size, device, across=across)
    return groups[key]


def _new_subgroup(
    group: dist.ProcessGroup, size: int, device: torch.device, *, across: bool
) -> dist.ProcessGroup:
    backend = group._get_backend(device)
    make = partial(
        dist.new_group,
        timeout=getattr(backend.options, "_timeout", None),  # a group that sends nothing has no options
        backend=backend.name(),
        device_id=device if device.type == "cuda" else None,
    )
    ranks = dist.get_process_group_ranks(group)
    groups = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    if across:
        groups = [ranks[place::size] for place in range(size)]
    index = dist.get_rank(group) % size if across else dist.get_rank(group) // size
    if len(ranks) == dist.get_world_size():
        own_group = [make(members) for members in groups][index]
    else:
        _check_names_agree(group)
        own_group = make(groups[index], use_local_synchronization=True)
    assert isinstance(own_group, dist.ProcessGroup), "this rank belongs to its own group"
    return own_group


def _check_names_agree(group: dist.ProcessGroup) -> None:
    """torch names a group of some ranks by how many groups its maker belongs to: ranks that differ in it
    would wait for one another for ever. They compare by the store: NCCL sends no objects.
    """
    rank = dist.get_rank(group)
    store = group.get_group_store()
    topic = f"zbench/groups/{store.add(f'zbench/groups/{rank}', 1)}"
    store.set(f"{topic}/{rank}", str(len(dist.distributed_c10d._world.pg_names)))
    counts = [int(store.get(f"{topic}/{other}")) for other in range(dist.get_world_size(group))]
    if len(set(counts)) > 1:
        raise UsageError(
            f"the ranks of this process group belong to {counts} process groups. torch can make another"
            " only where all belong to as many; make the engine's group first, or use the default group"
        )
