"""A process group with NCCL's rules, over gloo: what a card punishes by a hang or garbage shows on a CPU.

A work's `wait` only orders the stream; here, whatever touches the result from then on. Until then the result
is NaN. The host blocks only where it touches one, and nobody watches it there. A communicator runs one call
after another, and makes its connections at their first use, which waits for all ranks. Calls that differ in
kind, size or dtype hang. So does a call that another rank never makes: that it has ended is not noticed.
Objects and tensors in host memory are refused. What breaks a rule is a fault. `abort` ends the calls of its
own communicator, and returns when those of all others have ended; `shutdown` waits for the other ranks.
"""

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from tests.engine.far_memory.copies import Copies, FarMemory
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.memory.kinds import DeviceMemory, Memories
from zbench.engine.transport import buffers
from zbench.spec.engine import EngineSpec

FAULTS: list[str] = []
"""Rules that were broken in this process."""
NO_DEVICE = "a thread that has not chosen its device aborts a communicator"


@dataclass(eq=False)
class StrictWork:
    """A call in flight: `out` is written, from `values`, when something ordered behind it touches `out`."""

    out: Tensor
    group: "StrictGroup"
    done: threading.Event = field(default_factory=threading.Event)
    ordered: bool = False
    values: Tensor | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Order what follows on the stream behind it; return at once."""
        self.ordered = True
        return True

    def is_completed(self) -> bool:
        return self.done.is_set()


class Device:
    """What the streams of a card have been given and have not done."""

    def __init__(self) -> None:
        self.works: list[StrictWork] = []
        self._lock = threading.RLock()
        self.entered = {threading.main_thread().ident}

    def begin(self, work: StrictWork) -> None:
        with self._lock:
            self.works.append(work)

    def reach(self, tensors: Sequence[Tensor]) -> None:
        """Do what these tensors are ordered behind; may block for ever."""
        storages = {tensor.untyped_storage()._cdata for tensor in tensors}
        for work in list(self.works):
            if work.ordered and work.out.untyped_storage()._cdata in storages:
                self.finish(work)

    def finish(self, work: StrictWork) -> None:
        """Wait for a call and write its result."""
        work.done.wait()
        with self._lock, _disable_current_modes():
            if work in self.works:
                self.works.remove(work)
                if work.values is not None:
                    work.out.copy_(work.values.view_as(work.out))

    def enter(self) -> None:
        self.entered.add(threading.get_ident())

    def stream(self) -> "Device":
        return self

    def place(self, stream: "Device") -> "Place":
        assert stream is self, "the place of a stream that belongs to another thread"
        return Place([work for work in list(self.works) if work.ordered])


@dataclass
class Place:
    """A place in the stream: behind these works."""

    works: list[StrictWork]

    def query(self) -> bool:
        there = all(work.done.is_set() for work in self.works)
        for work in self.works if there else ():
            DEVICE.finish(work)
        return there


DEVICE = Device()


class Streams(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation is behind what its tensors are ordered behind."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DEVICE.works:
            leaves = tree_leaves((args, kwargs))
            DEVICE.reach([one for one in leaves if isinstance(one, Tensor) and one.layout == torch.strided])
        return func(*args, **(kwargs or {}))


class StrictGroup(dist.ProcessGroup):
    """See the module. Collectives are gloo's; `sealed`: no connection may be made any more."""

    sealed = False

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store, self._rank, self._size, self.timeout = store, rank, size, timeout
        self._inner = dist.ProcessGroupGloo(PrefixStore("strict", store), rank, size, timeout)
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._aborted = threading.Event()
        self._connected: set[str] = set()
        self._known_as = ""
        threading.Thread(target=self._serve, name="strict group", daemon=True).start()

    # What the engine asks of a group, and of its backend for a device.

    def _get_backend(self, device: torch.device) -> "StrictGroup":
        return self

    def name(self) -> str:
        return "strict"

    getBackendName = name  # noqa: N815 - torch's

    @property
    def options(self) -> Any:
        return mock.Mock(_timeout=self.timeout)

    @property
    def group_name(self) -> str:
        """What torch calls it; it asks once more when it has forgotten the group."""
        self._known_as = dist.distributed_c10d._world.pg_names.get(self, self._known_as)
        return self._known_as

    def get_group_store(self) -> Store:
        return self._store

    def shutdown(self) -> None:
        """Let go of the other ranks, which is a call of its own: it waits until all of them do."""
        count = self._store.add("strict shutdown", 1)
        while count < self._size and not self._aborted.wait(0.002):
            count = self._store.add("strict shutdown", 0)

    def abort(self) -> None:
        """End the calls of this communicator, whose results stay as they are, and wait until the device is
        idle: what other communicators have in flight has to end as well.
        """
        if threading.get_ident() not in DEVICE.entered:
            FAULTS.append(NO_DEVICE)
        self._aborted.set()
        for work in list(DEVICE.works):
            if work.group is self:
                work.done.set()
        for work in list(DEVICE.works):
            work.done.wait()

    # Collectives.

    def alltoall_base(self, out: Tensor, sent: Tensor, *_: Any) -> StrictWork:
        return self._call("p2p", "all-to-all", out, sent, self._all_to_all)

    all_to_all_single = alltoall_base

    def _allgather_base(self, out: Tensor, sent: Tensor, *_: Any) -> StrictWork:
        return self._call("ring", "all-gather", out, sent, self._gather)

    all_gather_single = _allgather_base

    def _reduce_scatter_base(self, out: Tensor, sent: Tensor, *_: Any) -> StrictWork:
        return self._call("ring", "reduce-scatter", out, sent, self._scatter_sum)

    reduce_scatter_single = _reduce_scatter_base

    def allreduce(self, tensors: list[Tensor], *_: Any) -> StrictWork:
        return self._call("ring", "all-reduce", tensors[0], tensors[0], self._sum)

    def broadcast(self, tensors: list[Tensor], options: Any) -> StrictWork:
        root = options.rootRank
        return self._call(
            "ring", f"broadcast of {root}", tensors[0], tensors[0], lambda t: self._send(t, root)
        )

    def barrier(self, *_: Any, **__: Any) -> StrictWork:
        return self.allreduce([torch.zeros(1)])

    def allgather(self, *_: Any) -> StrictWork:
        raise TypeError("NCCL sends no objects")

    def _call(
        self, connection: str, operation: str, out: Tensor, sent: Tensor, run: Callable[[Tensor], Tensor]
    ) -> StrictWork:
        for tensor in (out, sent):
            if not tensor.untyped_storage().resizable():
                FAULTS.append(f"{operation}: a tensor in host memory")
        self._connect(connection, operation)
        assert self.group_name
        work = StrictWork(out, self)
        before = [w for w in list(DEVICE.works) if w.ordered and _alike(w.out, sent)]
        code = zlib.crc32(repr((operation, out.numel(), sent.numel(), out.dtype)).encode())
        with _disable_current_modes():  # to launch waits for nothing
            if not _alike(out, sent):
                _poison(out)
            elif operation == "all-gather":
                for rank, part in enumerate(out.chunk(self._size)):
                    if rank != self._rank:
                        _poison(part)
        DEVICE.begin(work)
        self._queue.put(lambda: self._run(work, operation, code, before, sent, run))
        return work

    def _connect(self, connection: str, operation: str) -> None:
        """Make connections, which waits for all ranks."""
        if connection in self._connected or self._aborted.is_set():
            return
        self._connected.add(connection)
        if StrictGroup.sealed:
            FAULTS.append(f"{operation}: connections are made after the engine was built")
        count = self._store.add(f"strict {connection}", 1)
        while count < self._size and not self._aborted.wait(0.002):
            count = self._store.add(f"strict {connection}", 0)

    def _serve(self) -> None:
        while not self._aborted.is_set():
            self._queue.get()()

    def _run(
        self, work: StrictWork, operation: str, code: int, before: list[StrictWork], sent: Tensor, run: Any
    ) -> None:
        try:
            for earlier in before:
                DEVICE.finish(earlier)
            codes = self._gather(torch.tensor([code])).tolist()
            if len(set(codes)) > 1:
                FAULTS.append(f"{operation}: ranks are in different calls")
                self._aborted.wait()
            elif not self._aborted.is_set():
                work.values = run(sent)
        except RuntimeError:
            self._aborted.wait()  # NCCL does not notice that another rank has gone
        except Exception as error:
            FAULTS.append(f"{operation}: {error}")
            self._aborted.wait()
        work.done.set()

    def _all_to_all(self, sent: Tensor) -> Tensor:
        received = torch.empty_like(sent)
        self._inner.alltoall_base(received, sent.contiguous(), [], []).wait()
        return received

    def _gather(self, sent: Tensor) -> Tensor:
        parts = [torch.empty_like(sent) for _ in range(self._size)]
        self._inner.allgather([parts], [sent.clone()]).wait()
        return torch.cat([part.view(-1) for part in parts])

    def _scatter_sum(self, sent: Tensor) -> Tensor:
        parts = self._all_to_all(sent).chunk(self._size)
        first = (self._rank + 1) % self._size  # a ring begins behind the rank
        total = parts[first].clone()
        for distance in range(1, self._size):
            total += parts[(first + distance) % self._size]
        return total

    def _sum(self, sent: Tensor) -> Tensor:
        total = sent.clone()
        self._inner.allreduce([total]).wait()
        return total

    def _send(self, sent: Tensor, root: int) -> Tensor:
        values = sent.clone()
        self._inner.broadcast(values, root).wait()
        return values


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _poison(tensor: Tensor) -> None:
    tensor.fill_(torch.nan if tensor.dtype.is_floating_point else -1)


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> StrictGroup:
    return StrictGroup(store, rank, size, timeout)


@contextmanager
def strict(group: dist.ProcessGroup) -> Iterator[dist.ProcessGroup]:
    """Yield a strict group of all ranks of this world. `FAULTS` then has the rules that were broken."""
    if not hasattr(dist.Backend, "STRICT"):
        dist.Backend.register_backend("strict", _create, devices=["cpu"])
    FAULTS.clear()
    DEVICE.works.clear()
    StrictGroup.sealed = False
    counts = [0] * dist.get_world_size(group)
    dist.all_gather_object(counts, count := len(dist.distributed_c10d._world.pg_names), group=group)
    for _ in range(max(counts) - count):  # ranks that belong to unlike many groups could make no further ones
        dist.new_group([dist.get_rank()], use_local_synchronization=True)
    mine = dist.new_group(dist.get_process_group_ranks(group), backend="strict")
    assert isinstance(mine, StrictGroup)
    with mock.patch.object(buffers, "streams_of", return_value=DEVICE), Streams():
        yield mine


@contextmanager
def beside_a_host(seed: int) -> Iterator[tuple[Instruments, list[str]]]:
    """Yield instruments of an engine whose host memory is reached by late copies, and their faults."""
    copies = Copies(seed)
    faults = list[str]()

    def memories(device: torch.device) -> Memories:
        return Memories(DeviceMemory(device), FarMemory(copies))

    try:
        yield Instruments(memories=memories), faults
    finally:
        faults += copies.close()


def built(
    model: nn.Module, spec: dict[str, Any], group: dist.ProcessGroup, instruments: Instruments
) -> Engine:
    """Return an engine; from now on no communicator may be made."""
    StrictGroup.sealed = False
    engine = build_engine(
        model, EngineSpec.model_validate({"reduction": "rank_order"} | spec), group, instruments=instruments
    )
    StrictGroup.sealed = True
    return engine
