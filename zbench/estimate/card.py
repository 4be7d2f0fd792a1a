"""The way that the engine takes on an accelerator, on fake tensors of the CPU.

Default sizes are a GPU's, collectives are those of a process group with their receive buffers, and host
memory is another device, reached by copies. What another thread would do is done at once: the mode of fake
tensors belongs to one thread. A copy is not over before somebody waits for it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.memory.kinds import PinnedHostMemory
from zbench.engine.protocols import Copy, Memory
from zbench.engine.transport import process_group
from zbench.engine.transport.choose import ChooseTransport, Group, Reduction, Transport, in_shard_groups
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.engine.transport.works import QueuedWork, WorkerThread
from zbench.estimate.launches import StepCounter
from zbench.estimate.ledger import AllocationLedger


def transport_of(make: Callable[[Reduction], Group]) -> ChooseTransport:
    """Return what chooses the collectives that `make` returns, over a group that sends nothing."""

    def choose(
        group: dist.ProcessGroup | None,
        local: Memory,
        host: Memory,
        shard_group_size: int | None = None,
        reduction: Reduction = "auto",
    ) -> Transport:
        members = group or dist.group.WORLD
        assert members is not None
        return in_shard_groups(members, local.device, shard_group_size, make(reduction))

    return choose


card_transport = transport_of(
    lambda reduction: partial(ProcessGroupCollectives, in_rank_order=reduction == "rank_order")
)
"""The collectives of NCCL."""


def _add_in_one_pass(out: Tensor, parts: Sequence[Tensor]) -> None:
    """One operator, as the card's kernel is. The parts follow one another; without data, their order does not
    count.
    """
    length = parts[0].numel()
    rows = parts[0].as_strided((len(parts), length), (length, 1))
    torch.sum(rows, 0, dtype=torch.float32, out=out)


class HostMemory(PinnedHostMemory):
    """Host memory whose allocations the ledger counts as offloaded."""

    def __init__(self, device: torch.device, ledger: AllocationLedger) -> None:
        super().__init__(device)
        self._ledger = ledger

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        with self._ledger.on_host():
            return super().zeros(numel, dtype)

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        with self._ledger.on_host():
            return super().empty(numel, dtype)


class CardHostMemory(HostMemory):
    """Host memory beside a card."""

    device = torch.device("privateuseone")  # not that of the model: what computes there does not write here

    def __init__(self, device: torch.device, ledger: AllocationLedger, counter: StepCounter) -> None:
        super().__init__(device, ledger)
        self._counter = counter

    def copy_in(self, source: Tensor, target: Tensor) -> Copy:
        target.copy_(source)
        return CardCopy(self._counter, to_host=True)

    def copy_out(self, source: Tensor, target: Tensor) -> Copy:
        target.copy_(source)
        return CardCopy(self._counter, to_host=False)


@dataclass(slots=True)
class CardCopy:
    """A copy between card and host. The host waits once, at the end of it that the host reads or writes."""

    counter: StepCounter
    to_host: bool
    waited: bool = False

    def wait(self) -> None:
        self._wait_on_host(self.to_host)

    def release(self) -> None:
        self._wait_on_host(not self.to_host)

    def _wait_on_host(self, waits: bool) -> None:
        self.counter.host_waits += waits and not self.waited
        self.waited = self.waited or waits

    def is_completed(self) -> bool:
        return self.waited

    def behind(self) -> AbstractContextManager[object]:
        return nullcontext()


@dataclass(slots=True)
class ChunksOnDemand:
    """`torch.chunk`, with empty chunks at its end, of which FSDP2 reads two of as many as there are ranks."""

    tensor: Tensor
    count: int
    dim: int

    def __getitem__(self, k: int) -> Tensor:
        whole = self.tensor.size(self.dim)
        length = -(-whole // self.count)
        if k * length >= whole:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, k * length, min(length, whole - k * length))


@contextmanager
def fsdp_offload(ledger: AllocationLedger) -> Iterator[None]:
    """Let FSDP2's copies between host and device change the memory of what they copy.

    Both are the CPU here, where `to` would copy nothing. FSDP2 calls it with a device only to offload.
    """
    to, cpu = Tensor.to, Tensor.cpu

    def is_fsdp() -> bool:
        return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.distributed.fsdp.")

    @torch.no_grad()
    def other_side(tensor: Tensor) -> Tensor:
        with nullcontext() if ledger.is_offloaded(tensor) else ledger.on_host():
            target = torch.empty(tensor.shape, dtype=tensor.dtype)
        return target.copy_(tensor)

    def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], torch.device) and is_fsdp():
            return other_side(tensor)
        return to(tensor, *args, **kwargs)

    def moved_to_host(tensor: Tensor, *args: Any) -> Tensor:
        return other_side(tensor) if is_fsdp() else cpu(tensor, *args)

    with patch.object(Tensor, "to", moved), patch.object(Tensor, "cpu", moved_to_host):
        yield


@contextmanager
def on_card(counter: StepCounter, ledger: AllocationLedger) -> Iterator[None]:
    """Run the body as on a card: threads at once, sums by the card's operators, reads counted, releases of
    cached memory noted.
    """

    def submit(thread: WorkerThread, run: Callable[[], object]) -> QueuedWork:
        task = QueuedWork(run)
        waits = counter.host_waits
        task.do()
        counter.host_waits = waits  # the thread's own
        return task

    wait = QueuedWork.wait

    def waited(task: QueuedWork) -> None:
        counter.host_waits += 1
        wait(task)

    with (
        patch.object(WorkerThread, "submit", submit),
        patch.object(QueuedWork, "wait", waited),
        patch.object(process_group, "sum_in_rank_order", _add_in_one_pass),
        patch.object(Tensor, "cpu", lambda tensor, *_: counter.to_host(tensor)),
        patch.object(torch.cuda, "empty_cache", ledger.release),
    ):
        yield
