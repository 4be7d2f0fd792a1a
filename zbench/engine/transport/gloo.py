"""Gloo, with compositions of its operations that move the same bytes faster.

Between two ranks on two cores, sends and receives between all pairs took a fifth of the time of gloo's own
reduce-scatter and all-gather, for 109 MB of float32. No composition moves more bytes than another. The local
sum adds in rank order, so the bits depend on neither a backend's algorithm nor the bucket size.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from zbench.engine.protocols import Work
from zbench.engine.transport.agreement import Call, OtherCallError
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.sums import sum_in_rank_order
from zbench.engine.transport.works import All, Then, WorkerThread


class GlooCollectives(GroupCollectives):
    """Every rank sends each part to its owner, which adds them in rank order; a gather sends its own part to
    all.

    Reductions and gathers have a process group each, so they need no order relative to one another.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(group, device)
        self._timeout = group._get_backend(torch.device("cpu")).options._timeout
        self._exchanges, self._gathers = self._own_group("exchanges"), self._own_group("gathers")
        self._waits = {g: WorkerThread("gloo") for g in (self._exchanges, self._gathers)}
        self._seconds_to_end = 10.0

    def _own_group(self, purpose: str) -> dist.ProcessGroupGloo:
        """Return another process group of the same ranks."""
        store = PrefixStore(purpose, self.store)
        return dist.ProcessGroupGloo(store, self.rank, self.world_size, self._timeout)

    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work:
        """Allocates memory for the other ranks' parts only; this rank's own is read from `send`."""
        parts = list(send.chunk(self.world_size))
        others = self.world_size - 1
        length = parts[0].numel()
        loan = self.scratch.lend(others * length, send.dtype)
        received = list(loan.buffer.split(length))  # type: ignore[no-untyped-call]
        received.insert(self.rank, parts[self.rank])
        work = self._exchange(self._exchanges, parts, received, call)

        def finish() -> None:
            sum_in_rank_order(out, received)
            loan.give_back()

        return Then(work, finish)

    def _all_gather(self, flat: Tensor, call: Call) -> Work:
        parts = flat.chunk(self.world_size)
        return self._exchange(self._gathers, [parts[self.rank]] * self.world_size, parts, call)

    def end(self) -> None:
        self._seconds_to_end = 0.0
        for group, thread in self._waits.items():
            group.abort()
            thread.fail(OtherCallError("disconnected"))

    def close(self) -> None:
        super().close()
        for group, thread in self._waits.items():
            thread.close(self._seconds_to_end)
            group.shutdown()

    def _exchange(
        self, group: dist.ProcessGroupGloo, send: Sequence[Tensor], receive: Sequence[Tensor], call: Call
    ) -> Work:
        """Send send[r] to every other rank r and receive receive[r] from it, in an order that spreads the
        load.

        Messages of another call have another tag, so they cannot be received here; `Agreement.look` finds
        what waits for them.
        """
        works = list[Work]()
        slot = (call.number & 7) << 28 | call.code & 0xFFFFFFF
        for distance in range(1, self.world_size):
            source, target = (
                (self.rank - distance) % self.world_size,
                (self.rank + distance) % self.world_size,
            )
            works.append(group.recv([receive[source]], source, slot))  # type: ignore[attr-defined]
            works.append(group.send([send[target]], target, slot))  # type: ignore[attr-defined]
        return self._waits[group].submit(partial(self._wait, works, call))  # gloo's own wait cannot be ended

    def _wait(self, works: Sequence[Work], call: Call) -> None:
        try:
            All(works).wait()
        except RuntimeError as error:
            raise self.agreement.failed(call, error) from error
