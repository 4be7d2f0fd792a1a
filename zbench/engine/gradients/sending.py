"""The memory that a bucket's gradients are written to, and that it is sent from.

It is the bucket's own (in a buffer that is kept, or in that of the rank sums), or borrowed from a pool, or
autograd's, where one gradient fills the bucket. Where the communication dtype is another, it is cast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from zbench.engine.gradients.storage import HostSums
from zbench.engine.memory.buffers import bytes_of
from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.partition import Bucket, Layout
from zbench.engine.transport.buffers import ScratchPool
from zbench.engine.transport.sums import accumulate


class Loan(NamedTuple):
    """A buffer [bucket.length], and the `whole` buffer of the pool that it goes back to, if it does."""

    buffer: Tensor
    pool: ScratchPool | None = None
    whole: Tensor | None = None

    def give_back(self) -> None:
        """Let the memory be used again: it has been sent, or what is in it is discarded."""
        if self.pool is not None and self.whole is not None:
            self.pool.give(self.whole)


@dataclass(frozen=True, slots=True)
class Lender:
    """Lends a pool's buffers, in the dtype of each dtype group; what no parameter fills is zero."""

    layout: Layout
    pool: ScratchPool
    dtypes: Sequence[torch.dtype]

    def lend(self, place: Bucket) -> Loan:
        """Return a buffer for one bucket."""
        whole = self.pool.take(place.length, self.dtypes[place.dtype_group])
        for start, stop in self.layout.gaps[place.index]:
            whole[start:stop].zero_()
        return Loan(whole[: place.length], self.pool, whole)


class OwnMemory(Protocol):
    """Memory that each bucket always has."""

    def run(self, place: Bucket) -> Tensor:
        """Return that of one bucket [place.length]; what no parameter fills is zero."""

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now, if nobody else counts it."""


class BucketMemory:
    """Memory of buckets that are written by one backward, or (`accumulates`) by all of a step.

    own: the memory that a bucket always has. without_copy: send a gradient that fills its bucket from
    autograd's own memory. cast: what buckets are sent from, if not from where they are written.
    """

    def __init__(
        self,
        lender: Lender,
        *,
        own: OwnMemory | None = None,
        cast: Lender | None = None,
        accumulates: bool = False,
        without_copy: bool = False,
    ) -> None:
        self.accumulates = accumulates
        self._lender, self._own, self._cast, self._without_copy = lender, own, cast, without_copy

    def begin(self, *, reduces: bool) -> None:
        """Start a backward."""

    def open(self, place: Bucket, gradient: Tensor | None = None) -> Loan:
        """Return the memory to write a bucket to: that of its first `gradient` [n], if it is sent from it."""
        if self._without_copy and gradient is not None and self._is_bucket(place, gradient):
            return Loan(gradient)
        return self._lender.lend(place) if self._own is None else Loan(self._own.run(place))

    def _is_bucket(self, place: Bucket, gradient: Tensor) -> bool:
        alike = gradient.dtype == self._lender.dtypes[place.dtype_group]
        return alike and gradient.numel() == place.length and gradient.is_contiguous()

    def ready(self, place: Bucket, loan: Loan) -> Loan:
        """Return the memory to send a written bucket from."""
        if self._cast is None:
            return loan
        sent = self._cast.lend(place)
        sent.buffer.copy_(loan.buffer)
        loan.give_back()
        return sent

    def keep(self, place: Bucket, loan: Loan) -> Loan | None:
        """Take over a full bucket of a backward that does not reduce; return where its gradients are now, or
        None where `open` returns them.
        """
        return loan

    def clear(self) -> None:
        """Forget what was kept."""

    def close(self) -> None:
        """End what runs in the background."""

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds beside its pools."""
        return {} if self._own is None else self._own.bytes_by_category()


class KeptBuffer:
    """One flat buffer in `memory`, allocated when it is first needed and kept."""

    def __init__(self, length: int, memory: Memory, dtype: torch.dtype) -> None:
        self.memory, self._length, self._dtype = memory, length, dtype
        self._flat: Tensor | None = None

    def run(self, place: Bucket) -> Tensor:
        if self._flat is None:
            self._flat = self.memory.zeros(self._length, self._dtype)
        return self._flat.narrow(0, place.start, place.length)

    def bytes_by_category(self) -> dict[str, int]:
        held = 0 if self._flat is None else self.memory.occupied(self._flat.nbytes)
        return {f"{self.memory.prefix}gradients": held}


class HostAccumulation(BucketMemory):
    """Copies full buckets to host memory and adds them there, as ZeRO-Offload does (Ren et al., 2021,
    arXiv:2101.06840). The last backward copies a bucket's sums back when it needs them.

    So the device holds a few buckets at a time, and no gradient between two backwards.
    """

    def __init__(self, kept: KeptBuffer, leaving: Lender, returning: Lender, cast: Lender | None) -> None:
        super().__init__(leaving, cast=cast)
        self._kept, self._leaving, self._returning = kept, leaving, returning
        self._host = HostSums(kept.memory, leaving.pool, accumulate)
        self._held: set[int] = set()
        self._copies: list[Copy] = []

    def begin(self, *, reduces: bool) -> None:
        self.accumulates, self._lender = reduces, self._returning if reduces else self._leaving
        if reduces:
            self._host.settle()

    def open(self, place: Bucket, gradient: Tensor | None = None) -> Loan:
        loan = super().open(place)
        if self.accumulates and place.index in self._held:
            copy = self._kept.memory.copy_out(self._kept.run(place), loan.buffer)
            copy.wait()
            self._copies.append(copy)
        return loan

    def keep(self, place: Bucket, loan: Loan) -> None:
        assert loan.whole is not None
        self._host.add(loan.whole, self._kept.run(place), first=place.index not in self._held)
        self._held.add(place.index)

    def clear(self) -> None:
        """Return when the memory may be written again."""
        self._held.clear()
        self._host.settle()
        for copy in self._copies:
            copy.release()
        self._copies.clear()

    def close(self) -> None:
        self._host.close()

    def bytes_by_category(self) -> dict[str, int]:
        return bytes_of([self._host.bytes_by_category(), self._kept.bytes_by_category()])


@dataclass(frozen=True, slots=True)
class SendingMemory:
    """What the buckets of a step are written to and sent from.

    once: in a backward that alone is reduced. several: in the backwards that are reduced together; None where
    there are none. waits: whether a step's first gradients stay in autograd's memory until it is known that
    more will come: to save a copy, or because a step of one backward rounds nothing. pools: those that the
    memory comes from.
    """

    once: BucketMemory
    several: BucketMemory | None
    waits: bool
    pools: Sequence[ScratchPool]

    def drop(self) -> None:
        """Free every buffer of a pool that is not in use."""
        for pool in self.pools:
            pool.drop()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        pools = [{f"{pool.prefix}buckets": pool.bytes} for pool in self.pools]
        return bytes_of([*pools, (self.several or self.once).bytes_by_category()])
