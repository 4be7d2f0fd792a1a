"""Buffers over the local index space, in one memory or partitioned over two.

Large ones on the CPU that each step allocates ask for huge pages. Such a buffer, written once and then freed,
costs mostly page faults. On a virtual machine the first write of 20 MB took 11 ms, where a later one took
0.6. With huge pages it costs a fraction of that. Where the kernel's policy for transparent huge pages is
`always` or `never`, this changes nothing.
"""

import ctypes
import mmap
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from zbench.engine.adam.native import call_native
from zbench.engine.memory.kinds import Memory, used_on_current_stream
from zbench.engine.partition import Extent, joined
from zbench.engine.shard_layout import ShardLayout

_LEAST_BYTES = 4 << 20  # two huge pages of the usual size


def bytes_of(held: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the bytes by category of several holders together."""
    total: Counter[str] = Counter()
    for each in held:
        total.update(each)
    return dict(total)


class FlatBuffer:
    """Holds runs (`extents`) of the local index space in one memory, packed in one tensor, the only one of
    `buffers`.
    """

    def __init__(self, memory: Memory, extents: Sequence[Extent], dtype: torch.dtype) -> None:
        self.memory, self.extents = memory, extents
        self._starts = [extent.start for extent in extents]
        self._at = list(accumulate((extent.length for extent in extents), initial=0))
        self.buffers = [memory.zeros(self._at[-1], dtype)]
        self._is_released = False

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer's memory."""
        return self.buffers[0].untyped_storage().nbytes()

    def allocate(self) -> bool:
        """Allocate memory for the buffer and all its views, not initialised; return False where they have it
        already.
        """
        missing, self._is_released = self._is_released, False
        if missing and self._is_resizable:
            self.buffers[0].untyped_storage().resize_(self.buffers[0].nbytes)
            prefer_huge_pages(self.buffers[0])
        return missing

    def release(self) -> None:
        """Free the memory of the buffer and of all its views, which keep their shapes.

        Locked pages stay: to lock them anew would take longer than a step.
        """
        self._is_released = True
        if self._is_resizable:
            used_on_current_stream(self.buffers[0])
            self.buffers[0].untyped_storage().resize_(0)

    @property
    def _is_resizable(self) -> bool:
        return self.buffers[0].untyped_storage().resizable()

    def run(self, start: int, length: int) -> Tensor:
        """Return a run of the index space, as a view of the buffer, or the whole buffer."""
        k = bisect_right(self._starts, start) - 1
        assert k >= 0, f"{start} is not here"
        assert start + length <= self.extents[k].stop, f"[{start}, {start + length}) is not here"
        if length == self._at[-1]:
            return self.buffers[0]
        return self.buffers[0].narrow(0, self._at[k] + start - self.extents[k].start, length)


class PartitionedBuffer:
    """One value per local index, in one FlatBuffer per memory."""

    def __init__(self, flats: Sequence[FlatBuffer]) -> None:
        self.flats = flats
        parts = [(extent, flat) for flat in flats for extent in flat.extents]
        self._parts = sorted(parts, key=lambda part: part[0].start)
        self._starts = [extent.start for extent, _ in self._parts]

    def flat(self, start: int) -> FlatBuffer:
        """Return the buffer that holds the run that starts there; no run crosses from one to another."""
        return self._parts[bisect_right(self._starts, start) - 1][1]

    def run(self, start: int, length: int) -> Tensor:
        """Return a run of the index space, as a view."""
        return self.flat(start).run(start, length)

    def views(self, extent: Extent) -> Iterator[Tensor]:
        """Yield the views that make up a run of the index space, in local order."""
        for held, flat in self._parts:
            common = _overlap(held, extent)
            if common.length > 0:
                yield flat.run(common.start, common.length)

    def bytes_by_category(self, name: str) -> dict[str, int]:
        """Return the bytes in each memory."""
        return bytes_of(
            {f"{flat.memory.prefix}{name}": flat.memory.occupied(flat.nbytes)} for flat in self.flats
        )


@dataclass(frozen=True)
class MemoryLayout:
    """Which runs of the local index space are in which memory. `parts` are disjoint and cover them all."""

    parts: Sequence[tuple[Memory, Sequence[Extent]]]

    @classmethod
    def of(cls, parts: Iterable[tuple[Memory, Iterable[Extent]]]) -> "MemoryLayout":
        """Return the layout with neighbouring runs joined, and without empty parts (but for one)."""
        whole = [(memory, joined(extents)) for memory, extents in parts]
        return cls([part for part in whole if part[1]] or [(whole[0][0], [Extent(0, 0)])])

    def within(self, extent: Extent) -> "MemoryLayout":
        """Return the layout of one run of the index space."""
        cut = [(memory, [_overlap(e, extent) for e in extents]) for memory, extents in self.parts]
        return MemoryLayout.of((memory, [e for e in extents if e.length > 0]) for memory, extents in cut)

    def cut(self, extents: Iterable[Extent]) -> "MemoryLayout":
        """Return the same layout with a part of its own for each of `extents`, which cover it."""
        return MemoryLayout([part for extent in extents for part in self.within(extent).parts])

    def zeros(self, dtype: torch.dtype) -> PartitionedBuffer:
        """Return a zeroed buffer with this layout."""
        return PartitionedBuffer([FlatBuffer(memory, extents, dtype) for memory, extents in self.parts])


def memory_layout_of(shard: ShardLayout, offloaded: int, near: Memory, host: Memory) -> MemoryLayout:
    """Return the layout of a shard whose first `offloaded` buckets are in host memory."""
    local = [shard.local(b) for b in shard.layout.buckets]
    return MemoryLayout.of([(near, local[offloaded:]), (host, local[:offloaded])])


def _overlap(one: Extent, other: Extent) -> Extent:
    start = max(one.start, other.start)
    return Extent(start, min(one.stop, other.stop) - start)


def prefer_huge_pages(buffer: Tensor) -> None:
    """Ask the kernel to back a large `buffer`, contiguous and not yet written, with huge pages."""
    if sys.platform != "linux" or buffer.device.type != "cpu" or buffer.nbytes < _LEAST_BYTES:
        return
    call_native(partial(_advise, buffer), [buffer])


def _advise(buffer: Tensor) -> None:
    start = -(-buffer.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (buffer.data_ptr() + buffer.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ctypes.c_int(mmap.MADV_HUGEPAGE))


_madvise = ctypes.CDLL(None).madvise  # its failure is no harm: the pages are small then
