"""Far memory made of CPU memory, and collectives as late as its copies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.engine.far_memory.copies import Copies, LateCopy
from zbench.engine.protocols import Collectives, Tag


class FarMemory:
    """Host memory beside an accelerator, as the engine sees it: another device, reached by late copies."""

    prefix = "host_"
    device = torch.device("privateuseone")

    def __init__(self, copies: Copies) -> None:
        self._copies = copies

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self.empty(numel, dtype).zero_()

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return memory of a foreign owner: as that of locked pages, it cannot be resized."""
        owner = torch.full((numel,), torch.nan if dtype.is_floating_point else -1, dtype=dtype)
        return torch.from_numpy(owner.view(torch.uint8).numpy()).view(dtype) if numel else owner

    def occupied(self, nbytes: int) -> int:
        return nbytes

    def copy_in(self, source: Tensor, target: Tensor) -> LateCopy:
        return self._copies.start("copy to the host", source, target)

    def copy_out(self, source: Tensor, target: Tensor) -> LateCopy:
        return self._copies.start("copy to the device", source, target, to_device=True)


@dataclass
class Several:
    """Late copies as one work."""

    copies: Sequence[LateCopy]

    def wait(self) -> None:
        for copy in self.copies:
            copy.wait()

    def is_completed(self) -> bool:
        return all(copy.is_completed() for copy in self.copies)


class FarCollectives:
    """Collectives that come late: until `wait`, what is received is NaN, and what is sent must not change.
    Ranks call them at different times. What `inner` receives is NaN until it has arrived, too.
    """

    def __init__(self, inner: Collectives, copies: Copies) -> None:
        self._inner, self._copies = inner, copies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Several:
        received = poisoned(out)
        self._copies.dawdle()
        work = self._inner.reduce_scatter(send.clone(), received, tag)
        shared = send.untyped_storage()._cdata == out.untyped_storage()._cdata  # sent and received in place
        return self._late("reduce-scatter", work.wait, None if shared else send, [(out, received)])

    def all_gather(self, flat: Tensor, tag: Tag) -> Several:
        gathered = poisoned(flat)
        rank = self._inner.shard
        parts = [t.chunk(self._inner.shards) for t in (flat, gathered)]
        parts[1][rank].copy_(parts[0][rank])
        self._copies.dawdle()
        work = self._inner.all_gather(gathered, tag)
        pairs = [pair for k, pair in enumerate(zip(*parts, strict=True)) if k != rank]
        return self._late("all-gather", work.wait, parts[0][rank], pairs)

    def broadcast(self, tensor: Tensor, source: int, tag: Tag) -> Several:
        copy = tensor.clone() if self._inner.rank == source else poisoned(tensor)
        self._copies.dawdle()
        work = self._inner.broadcast(copy, source, tag)
        return self._late("broadcast", work.wait, None, [(tensor, copy)])

    def _late(
        self,
        label: str,
        wait: Callable[[], object],
        sent: Tensor | None,
        pairs: Sequence[tuple[Tensor, Tensor]],
    ) -> Several:
        """Start one copy for each pair (where to, what of); `wait` returns when the latter is there.

        It is called once: gloo's receive, waited for again, waits for another message.
        """
        arrived = cache(wait)

        def finish(received: Tensor) -> Tensor:
            arrived()
            return received

        return Several(
            [
                self._copies.start(label, sent, target, lambda received=received: finish(received))  # type: ignore[misc]
                for target, received in pairs
            ]
        )


def poisoned(like: Tensor) -> Tensor:
    """Return memory of a tensor's shape in which nothing has arrived."""
    return torch.full_like(like, torch.nan if like.dtype.is_floating_point else -1)
