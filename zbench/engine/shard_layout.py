"""What each rank keeps of the flat layout: its shard, or everything."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from zbench.engine.partition import Extent, Layout

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of one parameter (with its padding to CHUNK) that this rank's optimizer updates."""

    parameter: int
    dtype_group: int
    flat: int
    local: int
    length: int

    def cut(self, size: int) -> Iterator["Segment"]:
        """Yield it in segments of at most `size` elements."""
        for at in range(0, self.length, size):
            length = min(size, self.length - at)
            yield replace(self, flat=self.flat + at, local=self.local + at, length=length)


def joined(
    segments: Iterable[Segment], alike: Callable[[Segment, Segment], bool] = lambda run, s: True
) -> Iterator[Segment]:
    """Yield neighbours that are `alike` as one, which has the first one's parameter."""
    run: Segment | None = None
    for s in segments:
        ends = run and (run.dtype_group, run.flat + run.length, run.local + run.length)
        if run and ends == (s.dtype_group, s.flat, s.local) and alike(run, s):
            run = replace(run, length=run.length + s.length)
        else:
            if run:
                yield run
            run = s
    if run:
        yield run


def grouped(items: Iterable[T], size: int, length: Callable[[T], int]) -> list[list[T]]:
    """Return the items, in order, in groups of at most `size` elements; a longer item is a group alone."""
    groups: list[list[T]] = []
    room = 0
    for item in items:
        if length(item) > room:
            groups.append([])
            room = max(size, length(item))
        groups[-1].append(item)
        room -= length(item)
    return groups


class ShardLayout(ABC):
    """What one rank keeps of the flat layout, in a local index space [length]."""

    def __init__(self, layout: Layout, rank: int, scale: int) -> None:
        self.layout, self.rank, self._scale = layout, rank, scale
        self.shard = rank % layout.shards
        self.length = layout.length // scale
        self.segments = tuple(self._segments())

    @property
    def keeps_all(self) -> bool:
        """Whether this rank keeps the whole flat layout."""
        return self.length == self.layout.length

    def local(self, extent: Extent) -> Extent:
        """Return the run of the local index space for a run of whole blocks."""
        return Extent(extent.start // self._scale, extent.length // self._scale)

    def part(self, block: Extent) -> Extent:
        """Return the run of the flat layout that this rank reduces and gathers of a block."""
        size = block.length // self.layout.shards
        return Extent(block.start + self.shard * size, size)

    @abstractmethod
    def kept(self, block: Extent) -> Extent:
        """Return the run of the flat layout that this rank keeps of a block."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Extent]:
        """This rank's part of every block, in local order, as runs of the local index space."""

    @property
    @abstractmethod
    def blocks_to_gather(self) -> Sequence[Extent]:
        """The blocks of which this rank needs the other ranks' parts after an optimizer step."""

    def _segments(self) -> Iterator[Segment]:
        starts, order = self.layout.in_order
        for block in self.layout.blocks:
            part = self.kept(block)
            local = self.local(block)
            for i in order[
                max(bisect_right(starts, part.start) - 1, 0) : bisect_right(starts, part.stop - 1)
            ]:
                span = self.layout.spans[i]
                start, stop = max(span.start, part.start), min(span.padded_stop, part.stop)
                if start < stop:
                    yield Segment(
                        i,
                        self.layout.dtype_group_of[i],
                        start,
                        local.start + start - part.start,
                        stop - start,
                    )


class ShardedLayout(ShardLayout):
    """Keeps one shard: this rank's part of every block. Ranks `layout.shards` apart keep the same."""

    def __init__(self, layout: Layout, rank: int) -> None:
        super().__init__(layout, rank, layout.shards)

    def kept(self, block: Extent) -> Extent:
        return self.part(block)

    @property
    def parts(self) -> Sequence[Extent]:
        return (Extent(0, self.length),)

    @property
    def blocks_to_gather(self) -> Sequence[Extent]:
        return self.layout.blocks


class WholeLayout(ShardLayout):
    """Keeps everything, the same on every rank."""

    def __init__(self, layout: Layout, rank: int) -> None:
        super().__init__(layout, rank, 1)

    def kept(self, block: Extent) -> Extent:
        return block

    @property
    def parts(self) -> Sequence[Extent]:
        return [self.part(block) for block in self.layout.blocks]

    @property
    def blocks_to_gather(self) -> Sequence[Extent]:
        return ()
