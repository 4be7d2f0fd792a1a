"""Where gradients are stored: in buckets before their reduction, as rank sums behind it.

A bucket's gradients are written to memory of its own (in a buffer that is kept, or in that of the rank sums),
or to memory from a pool. Where one gradient fills the bucket, it stays in autograd's memory. Where the
communication dtype is another, what is sent is cast.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import torch
from torch import Tensor

from zbench.engine.gradients.host import HostSums
from zbench.engine.memory.buffers import FlatBuffer, MemoryLayout, bytes_of
from zbench.engine.memory.kinds import Copy, Memory
from zbench.engine.partition import Bucket, Extent, Layout
from zbench.engine.protocols import Collectives, HoldsBytes, Tag, Work
from zbench.engine.shard_layout import ShardLayout
from zbench.engine.transport.buffers import Loan, ScratchPool
from zbench.engine.transport.sums import accumulate
from zbench.engine.transport.works import All

_GATHERED = Tag("the reduced gradients")


class Lender(Protocol):
    """Lends each bucket the memory that its gradients are written to."""

    def lend(self, bucket: Bucket, gradient: Tensor | None = None) -> Loan:
        """Return memory [bucket.length], of which `gradient` [n] is written first. What no
        parameter fills is zero.
        """


@dataclass(frozen=True, slots=True)
class FromPool:
    """Lends a pool's buffers, in the dtype of each dtype group. without_copy: lends the gradient itself that
    fills a bucket.
    """

    layout: Layout
    pool: ScratchPool
    dtypes: Sequence[torch.dtype]
    without_copy: bool = False

    def lend(self, bucket: Bucket, gradient: Tensor | None = None) -> Loan:
        dtype = self.dtypes[bucket.dtype_group]
        if (
            self.without_copy
            and gradient is not None
            and gradient.dtype == dtype
            and gradient.is_contiguous()
            and gradient.numel() == bucket.length
        ):
            return Loan(gradient)
        loan = self.pool.lend(bucket.length, dtype)
        for start, stop in self.layout.gaps[bucket.index]:
            loan.buffer[start:stop].zero_()
        return loan


class KeptBuffer:
    """Lends runs of one flat buffer in `memory`, allocated when it is first needed and kept."""

    def __init__(self, length: int, memory: Memory, dtype: torch.dtype) -> None:
        self.memory, self._length, self._dtype = memory, length, dtype
        self._flat: Tensor | None = None

    def lend(self, bucket: Bucket, gradient: Tensor | None = None) -> Loan:
        if self._flat is None:
            self._flat = self.memory.zeros(self._length, self._dtype)
        return Loan(self._flat.narrow(0, bucket.start, bucket.length))

    def bytes_by_category(self) -> dict[str, int]:
        held = 0 if self._flat is None else self.memory.occupied(self._flat.nbytes)
        return {f"{self.memory.prefix}gradients": held}


class BucketMemory:
    """Memory of buckets, for one backward or for several of a step.

    cast: lends what buckets are sent from, if not from where they are written.
    """

    def __init__(self, lender: Lender, cast: Lender | None = None) -> None:
        self._lender, self._cast = lender, cast

    def begin(self, *, reduces: bool) -> None:
        """Start a backward."""

    def open(self, bucket: Bucket, gradient: Tensor | None = None) -> tuple[Loan, set[int]]:
        """Return the memory to write a bucket to, from its first `gradient` on, and the parameters whose
        gradients are there.
        """
        return self._lender.lend(bucket, gradient), set()

    def ready(self, bucket: Bucket, loan: Loan) -> Loan:
        """Return the memory to send a written bucket from."""
        if self._cast is None:
            return loan
        sent = self._cast.lend(bucket)
        sent.buffer.copy_(loan.buffer)
        loan.give_back()
        return sent

    def keep(self, bucket: Bucket, loan: Loan, holds: set[int]) -> Loan | None:
        """Take over a bucket of a backward that does not reduce, and that `holds` gradients of these
        parameters; return where they are now, or None where `open` returns them.
        """
        return loan

    def clear(self) -> None:
        """Forget what was kept."""

    def close(self) -> None:
        """End what runs in the background."""


class HostAccumulation(BucketMemory):
    """Copies full buckets to host memory and adds them there, as ZeRO-Offload does (Ren et al., 2021,
    arXiv:2101.06840). The last backward copies a bucket's sums back when it needs them.

    So the device holds a few buckets at a time, and no gradient between two backwards.
    """

    def __init__(self, buffer: KeptBuffer, leaving: Lender, returning: Lender, cast: Lender | None) -> None:
        super().__init__(leaving, cast)
        self._kept, self._leaving, self._returning = buffer, leaving, returning
        self.host = HostSums(buffer.memory, accumulate)
        self._held: dict[int, set[int]] = {}
        self._copies: list[Copy] = []

    def begin(self, *, reduces: bool) -> None:
        self._lender = self._returning if reduces else self._leaving
        if reduces:
            self.host.settle()

    def open(self, bucket: Bucket, gradient: Tensor | None = None) -> tuple[Loan, set[int]]:
        loan = self._lender.lend(bucket)
        if self._lender is self._leaving or bucket.index not in self._held:
            return loan, set()
        copy = self._kept.memory.copy_out(self._kept.lend(bucket).buffer, loan.buffer)
        copy.wait()
        self._copies.append(copy)
        return loan, set(self._held[bucket.index])

    def keep(self, bucket: Bucket, loan: Loan, holds: set[int]) -> None:
        self.host.add(loan, self._kept.lend(bucket).buffer, first=bucket.index not in self._held)
        self._held[bucket.index] = self._held.get(bucket.index, set()) | holds

    def clear(self) -> None:
        """Return when the memory may be written again."""
        self._held.clear()
        self.host.settle()
        for copy in self._copies:
            copy.release()
        self._copies.clear()

    def close(self) -> None:
        self.host.close()


@dataclass(frozen=True, slots=True)
class SendingMemory:
    """What the buckets of a step are written to and sent from.

    once: in a backward that alone is reduced. several: in the backwards that are reduced together; None where
    there are none. waits: whether a step's first gradients stay in autograd's memory until it is known that
    more will come. That saves a copy, or the rounding of a step of one backward. pools: what the memory is
    lent from; others: what else holds some.
    """

    once: BucketMemory
    several: BucketMemory | None
    waits: bool
    pools: Sequence[ScratchPool]
    others: Sequence[HoldsBytes] = ()

    def drop(self) -> None:
        """Free every buffer of a pool that is not in use."""
        for pool in self.pools:
            pool.drop()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        return bytes_of(holder.bytes_by_category() for holder in (*self.pools, *self.others))


class SumsMemory(Enum):
    """How long the rank sums have memory."""

    ENGINE = auto()
    """As long as the engine."""
    BUCKET = auto()
    """From each bucket's first reduction to the optimizer step, so none at the peak of activation memory."""


class RankSums:
    """The rank sums of what this rank keeps: `sums` [shard.length] float32, in local order.

    Each later backward of a step is added; sums of several are rounded to the accumulation dtype. Where the
    rank keeps everything, its parts are reduced into it, and the last backward gathers those of other ranks.
    Per backward: `begin`, then `target` and `store` for each bucket, then `settle`; per step: `release`.
    is_near: whether the device itself can write all of them.
    """

    def __init__(
        self,
        shard: ShardLayout,
        memory_layout: MemoryLayout,
        device: torch.device,
        collectives: Collectives,
        accumulation_dtype: torch.dtype,
        lasts: SumsMemory,
    ) -> None:
        """device: that of the model. collectives: gather, where they must."""
        self.shard, self.device, self._lasts = shard, device, lasts
        self._collectives, self._accumulation_dtype = collectives, accumulation_dtype
        if lasts is SumsMemory.BUCKET:
            memory_layout = memory_layout.cut(shard.local(b) for b in shard.layout.buckets)
        self.sums = memory_layout.zeros(torch.float32)
        self._scratch = ScratchPool(device)
        far = {flat.memory for flat in self.sums.flats if flat.memory.device.type != device.type}
        self._far = {memory: HostSums(memory, self._add) for memory in far}
        self.is_near = not far
        # then all shards are in `sums`, so that flat places are places in `sums`
        self._has_others = shard.keeps_all and shard.layout.shards > 1
        self._first = self._gathered = True
        self._gathers: list[Work] = []
        self.release()

    def begin(self, *, first: bool, last: bool) -> None:
        """Start a backward that reduces: the `first` of a step overwrites, later ones add."""
        self._first = first
        self._gathered = last or not self._has_others

    def target(self, bucket: Bucket) -> Loan:
        """Return what the reduction writes [bucket.length / shards] in float32: the place of the sums, or
        scratch memory.
        """
        flat = self._flat(bucket)
        place = self._place(bucket)
        flat.allocate()
        direct = self._first and flat.memory not in self._far
        return Loan(place) if direct else self._scratch.lend(place.numel(), torch.float32)

    def store(self, bucket: Bucket, target: Loan) -> Work | None:
        """Take over a finished reduction from `target`; return what to wait for, if its sums are not in
        `sums`.
        """
        place = self._place(bucket)
        far = self._far.get(self._flat(bucket).memory)
        if far is not None:
            return far.add(target, place, first=self._first)
        if not self._first:
            self._add(place, target.buffer)
        target.give_back()
        if self._has_others and self._gathered:
            self._gather([bucket])
        return None

    def settle(self, *, discard: bool = False) -> None:
        """Return when every sum is in `sums`; to `discard` them, when nothing is in flight any more."""
        if not self._gathered and not discard:
            self._gather(self.shard.layout.blocks)
        self._gathered = True
        All(self._gathers).wait()
        self._gathers.clear()
        for far in self._far.values():
            far.settle()

    def release(self) -> None:
        """Release the step's gradient memory, where it is not kept: the step was taken or discarded."""
        if self._lasts is not SumsMemory.ENGINE:
            for flat in self.sums.flats:
                flat.release()
            self._scratch.drop()

    def close(self) -> None:
        """End what runs in the background."""
        for far in self._far.values():
            far.close()

    def bytes_by_category(self) -> dict[str, int]:
        """Return what it holds now."""
        pools = [self._scratch, *(far.staging for far in self._far.values())]
        held = [pool.bytes_by_category() for pool in pools]
        return bytes_of([self.sums.bytes_by_category("gradients"), *held])

    def _flat(self, bucket: Bucket) -> FlatBuffer:
        return self.sums.flat(self.shard.local(bucket).start)

    def _place(self, bucket: Bucket) -> Tensor:
        part = self.shard.part(bucket) if self._has_others else self.shard.local(bucket)
        return self.sums.run(part.start, part.length)

    def _gather(self, blocks: Iterable[Extent]) -> None:
        views = [self.sums.run(b.start, b.length) for b in blocks]
        self._gathers += [self._collectives.all_gather(view, _GATHERED) for view in views]

    def _add(self, place: Tensor, sums: Tensor) -> None:
        total = place.to(self._accumulation_dtype)
        accumulate(total, sums)
        if total is not place:
            place.copy_(total)
