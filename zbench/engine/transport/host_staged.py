"""Collectives of device tensors through host memory: for gloo, and so for several ranks on one GPU, which
NCCL refuses.
"""

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from zbench.engine.protocols import Copy, Memory, Tag, Work
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.buffers import Loan, ScratchPool, to_host
from zbench.engine.transport.hybrid import HybridCollectives
from zbench.engine.transport.works import Done, Then, WorkerThread

_LEAVING = 4  # results that may be on their way to the device: the host waits for the one before


class HostStagedCollectives:
    """Copies what is sent to `host`, calls `inner` there, and copies the result back when it is waited for.
    What is sent may be written once `wait` has returned, and not before.

    Reductions and gathers have a thread each, as they need no order relative to one another.
    """

    def __init__(self, inner: GroupCollectives | HybridCollectives, host: Memory) -> None:
        self.rank, self.world_size, self.agreement = inner.rank, inner.world_size, inner.agreement
        self.shard, self.shards = inner.shard, inner.shards
        self._inner, self._host = inner, host
        self._staging = ScratchPool(host.device, host)
        self._leaving: deque[tuple[Copy, Sequence[Loan]]] = deque()
        self._reductions, self._gathers = WorkerThread("staged reductions"), WorkerThread("staged gathers")

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        self.agreement.process.check()
        sent, reduced = (self._staging.lend(t.numel(), t.dtype) for t in (send, out))
        copy = self._host.copy_in(send, sent.buffer)
        call = self._reductions.submit(
            lambda: (copy.wait(), self._inner.reduce_scatter(sent.buffer, reduced.buffer, tag).wait())
        )
        return Then(call, lambda: self._bring_back(out, reduced, sent))

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        self.agreement.process.check()
        gathered = self._staging.lend(flat.numel(), flat.dtype)
        part, staged = (t.chunk(self.shards)[self.shard] for t in (flat, gathered.buffer))
        copy = self._host.copy_in(part, staged)
        call = self._gathers.submit(
            lambda: (copy.wait(), self._inner.all_gather(gathered.buffer, tag).wait())
        )
        return Then(call, lambda: self._bring_back(flat, gathered))

    def all_gather_small(self, values: Tensor, tag: Tag) -> Tensor:
        return self._inner.all_gather_small(to_host(values), tag)

    def gather_shards(self, values: Tensor, tag: Tag) -> Tensor:
        return self._inner.gather_shards(to_host(values), tag)

    def add_up(self, words: Tensor, tag: Tag) -> Tensor:
        return self._inner.add_up(to_host(words), tag)

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Work:
        values = tensor.cpu()
        self._inner.broadcast(values, source, tag).wait()
        tensor.copy_(values)
        return Done()

    def barrier(self) -> None:
        self._inner.barrier()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what its buffers hold now; all of them are the host's."""
        inner = sum(self._inner.bytes_by_category().values())
        return {f"{self._host.prefix}buckets": self._staging.bytes + inner}

    def release_scratch(self) -> None:
        """Free the buffers that are not in use."""
        self._staging.drop()
        self._inner.release_scratch()

    def close(self) -> None:
        """End the threads, and release what was made for this engine alone."""
        self._reductions.close()
        self._gathers.close()
        self._inner.close()

    def _bring_back(self, target: Tensor, result: Loan, *sent: Loan) -> None:
        copy = self._host.copy_out(result.buffer, target)
        copy.wait()
        self._leaving.append((copy, (result, *sent)))
        while self._leaving and (len(self._leaving) > _LEAVING or self._leaving[0][0].is_completed()):
            copy, loans = self._leaving.popleft()
            copy.release()
            for loan in loans:
                loan.give_back()
