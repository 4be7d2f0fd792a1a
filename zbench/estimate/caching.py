"""A model of torch's CUDA caching allocator: the memory that it reserves for a sequence of allocations.

The rules, with the function of c10/cuda/CUDACachingAllocator.cpp that has each:

- a size is rounded up to 512 bytes (`round_size`); sizes up to 1 MiB have pools of their own (`get_pool`);
- a request takes the smallest free block of its stream's pool that is large enough (`get_free_block`);
- without one, a segment is reserved (`get_allocation_size`): 2 MiB for a small request, 20 MiB for one below
  10 MiB, else the size rounded up to 2 MiB;
- what is left of a block is split off (`should_split`): from 512 bytes if small, above 1 MiB if large;
- a freed block merges with free neighbours of its segment (`try_merge_blocks`), and stays reserved;
- at the limit, segments that are wholly free are released, and the request is tried again
  (`release_cached_blocks`).

With expandable segments a pool has one segment that grows by pages of 2 MiB (small) or 20 MiB
(`try_allocate_expandable_block`). What is left of any block is split off from 512 bytes. At the limit free
pages are released (`unmap_block`). A block at the end counts with the size that it can grow to.
"""

import re
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from zbench.estimate.result import Reserved

MIB = 1 << 20
ROUND = 512
SMALL, MIDDLE = 1 * MIB, 10 * MIB
SMALL_PAGE, LARGE_PAGE = 2 * MIB, 20 * MIB
SPACE = 1 << 60
"""Addresses of an expandable segment."""
RELEASE = -1
Change = tuple[int, int, int, int]
"""When, which allocation (RELEASE: give back what is free), its bytes (0: it is freed), its stream."""
_PRECISION = 0.01
_EXPANDABLE = re.compile(r"expandable_segments\s*:\s*(true|1)", re.I)


class OutOfDeviceMemoryError(Exception):
    """A request does not fit the limit, even after free memory has been released."""


class BlockState(Enum):
    """What a block is."""

    USED = auto()
    FREE = auto()
    UNMAPPED = auto()
    """Addresses of an expandable segment without memory."""


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """A run of a segment, between its neighbours in the segment."""

    pool: "BlockPool"
    address: int
    size: int
    state: BlockState
    before: "MemoryBlock | None" = None
    after: "MemoryBlock | None" = None

    @property
    def grown(self) -> int:
        """The size that it can grow to."""
        follows = self.after
        return self.size + (
            follows.size if follows is not None and follows.state is BlockState.UNMAPPED else 0
        )

    def cut(self, size: int) -> "MemoryBlock":
        """Keep the first `size` bytes; return the rest, a block of the same state."""
        rest = MemoryBlock(self.pool, self.address + size, self.size - size, self.state, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.size, self.after = size, rest
        return rest

    def take_in(self, other: "MemoryBlock | None") -> None:
        """Merge with a neighbour of the same state."""
        if other is None or other.state is not self.state:
            return
        other.pool.forget(other)
        if other is self.before:
            self.address, self.before = other.address, other.before
            if self.before is not None:
                self.before.after = self
        else:
            self.after = other.after
            if self.after is not None:
                self.after.before = self
        self.size += other.size


@dataclass(slots=True, eq=False)
class BlockPool:
    """The blocks of small or of large requests of one stream that are not in use."""

    page: int
    is_small: bool
    free: list[tuple[int, int, MemoryBlock]] = field(default_factory=list)
    unmapped: list[tuple[int, MemoryBlock]] = field(default_factory=list)

    def keep(self, block: MemoryBlock) -> None:
        """Have a block for requests."""
        if block.state is BlockState.FREE:
            insort(self.free, (block.size, block.address, block))
        else:
            insort(self.unmapped, (block.address, block))

    def forget(self, block: MemoryBlock) -> None:
        """No longer have it."""
        if block.state is BlockState.FREE:
            self.free.pop(bisect_left(self.free, (block.size, block.address)))
        else:
            self.unmapped.pop(bisect_left(self.unmapped, (block.address,)))

    def best(self, size: int) -> MemoryBlock | None:
        """Return the smallest free block of at least `size` bytes."""
        place = bisect_left(self.free, (size,))
        if place == len(self.free):
            return None
        block = self.free[place][2]
        while (place := place + 1) < len(self.free) and self.free[place][2].grown < block.grown:
            block = self.free[place][2]
        return block


class CachingAllocator:
    """The memory of one device. limit: bytes that it may reserve; None: any number."""

    def __init__(self, limit: int | None = None, *, expandable: bool = False) -> None:
        self.limit, self._expandable = limit, expandable
        self.reserved = self.peak = 0
        self._pools: dict[tuple[int, bool], BlockPool] = {}
        self._end = 0

    def allocate(self, nbytes: int, stream: int = 0) -> MemoryBlock:
        """Return a block for `nbytes` (at least 1). OutOfDeviceMemoryError if there is no room."""
        size = _up(nbytes, ROUND)
        is_small = size <= SMALL
        page = SMALL_PAGE if is_small else LARGE_PAGE
        pool = self._pools.setdefault((stream, is_small), BlockPool(page, is_small))
        block = pool.best(size) or self._more(pool, size)
        if block is None:
            self.release()
            block = self._more(pool, size)
        if block is None:
            raise OutOfDeviceMemoryError
        pool.forget(block)
        remaining_bytes = block.size - size
        if remaining_bytes >= ROUND if self._expandable or is_small else remaining_bytes > SMALL:
            pool.keep(block.cut(size))
        block.state = BlockState.USED
        return block

    def free(self, block: MemoryBlock) -> None:
        """Take a block back; its memory stays reserved."""
        block.state = BlockState.FREE
        self._merged(block)

    def release(self) -> None:
        """Give back what is wholly free (`torch.cuda.empty_cache`)."""
        for pool in self._pools.values():
            for _, _, block in list(pool.free):
                if self._expandable:
                    self._unmap(block)
                elif block.before is block.after is None:
                    pool.forget(block)
                    self.reserved -= block.size

    def _reserve(self, size: int) -> bool:
        """Take memory of the device; return whether there was enough."""
        if self.limit is not None and self.reserved + size > self.limit:
            return False
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
        return True

    def _more(self, pool: BlockPool, size: int) -> MemoryBlock | None:
        """Return a free block of new memory; None at the limit."""
        if self._expandable:
            return self._grown(pool, size)
        whole = pool.page if size < MIDDLE else _up(size, SMALL_PAGE)
        if not self._reserve(whole):
            return None
        self._end += whole
        block = MemoryBlock(pool, self._end - whole, whole, BlockState.FREE)
        pool.keep(block)
        return block

    def _grown(self, pool: BlockPool, size: int) -> MemoryBlock | None:
        """Return a free block at the lowest addresses where pages can be mapped; None at the limit."""
        if not pool.unmapped:
            pool.keep(MemoryBlock(pool, 0, SPACE, BlockState.UNMAPPED))
        block = next(filter(None, (_run(block, size) for _, block in pool.unmapped)))
        while block.state is BlockState.UNMAPPED or block.size < size:
            target, lacking = block, size
            if block.state is BlockState.FREE:
                assert block.after is not None
                target = block.after
                lacking = size - block.size
            pages = min(_up(lacking, pool.page), target.size)
            if not self._reserve(pages):
                return None
            pool.forget(target)
            if pages < target.size:
                pool.keep(target.cut(pages))
            target.state = BlockState.FREE
            self._merged(target)
            block = target
        return block

    def _unmap(self, block: MemoryBlock) -> None:
        """Release the whole pages of a free block."""
        pool = block.pool
        begin = _up(block.address, pool.page)
        end = (block.address + block.size) // pool.page * pool.page
        if end <= begin:
            return
        pool.forget(block)
        middle = block.cut(begin - block.address) if begin > block.address else block
        if middle is not block:
            pool.keep(block)
        if middle.size > end - begin:
            pool.keep(middle.cut(end - begin))
        self.reserved -= middle.size
        middle.state = BlockState.UNMAPPED
        self._merged(middle)

    def _merged(self, block: MemoryBlock) -> None:
        block.take_in(block.before)
        block.take_in(block.after)
        block.pool.keep(block)


def _run(block: MemoryBlock, size: int) -> MemoryBlock | None:
    """Return where a run of free and unmapped blocks begins at an unmapped one (`find_expandable_block`)."""
    first = block.before if block.before is not None and block.before.state is BlockState.FREE else block
    room, at = first.size, first
    while room < size:
        if at.after is None or at.after.state is BlockState.USED:
            return None
        at = at.after
        room += at.size
    return first


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def reserved(
    changes: Sequence[Change], built: int, begin: int, allocated: int, *, expandable: bool
) -> Reserved:
    """Return what a step, which begins at the moment `begin`, reserves for a sequence of changes.

    built: the moment from which a limit holds. allocated: the step's peak, below which no limit is tried.
    """

    ends = [bisect_left(changes, (moment + 1,)) for moment in (built, begin)]
    parts = [changes[: ends[0]], changes[ends[0] : ends[1]], changes[ends[1] :]]

    def peak(limit: int | None) -> int:
        allocator = CachingAllocator(expandable=expandable)
        held = dict[int, MemoryBlock]()
        for part, bound in zip(parts, (None, limit, limit), strict=True):
            allocator.limit, allocator.peak = bound, allocator.reserved
            for _, key, nbytes, stream in part:
                if nbytes:
                    held[key] = allocator.allocate(nbytes, stream)
                elif key == RELEASE:
                    allocator.release()
                else:
                    allocator.free(held.pop(key))
        return allocator.peak

    most = least = peak(None)
    short = allocated
    while least - short > _PRECISION * least:
        middle = (least + short) // 2
        try:
            peak(middle)
            least = middle
        except OutOfDeviceMemoryError:
            short = middle
    return Reserved(most, least, expandable)


def is_expandable(environment: Mapping[str, str]) -> bool:
    """Return whether the environment of a trial asks torch for expandable segments."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return any(_EXPANDABLE.search(environment.get(name, "")) for name in names)
