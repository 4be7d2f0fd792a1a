"""The flat layout: where every element of every parameter is, as pure integers.

All trained parameters are laid end to end in one index space, the flat layout, in the order in which backward
produces their gradients. Every parameter begins at a multiple of CHUNK elements; the gaps stay zero.

The flat layout is cut into gather groups: parameters that are stored and gathered together. A group is cut
into *blocks*, and a block into as many equal parts as there are shards. Part s belongs to the ranks that keep
shard s. So a block is gathered and reduced in place, and a rank's parts of consecutive blocks are adjacent in
its *local* index space. A *bucket* is one block that is reduced at once: a gradient is one run of it, however
many shards there are.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from zbench.engine.adam.contract import NORM_CHUNK as CHUNK


def round_up(count: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of the flat layout: a block, a group, or one parameter's place."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length

    @property
    def padded_stop(self) -> int:
        """Where the next parameter may begin."""
        return self.start + round_up(self.length, CHUNK)


def joined(extents: Iterable[Extent]) -> list[Extent]:
    """Return runs in order of their place, neighbouring ones as one."""
    result = list[Extent]()
    for extent in sorted(extents, key=lambda one: one.start):
        if result and result[-1].stop == extent.start:
            result[-1] = Extent(result[-1].start, result[-1].length + extent.length)
        else:
            result.append(extent)
    return result


@dataclass(frozen=True, slots=True)
class GatherGroup:
    """Parameters (indices, in flat order) that are stored and gathered together, and the number of their
    dtype group.
    """

    parameters: tuple[int, ...]
    dtype_group: int = 0


@dataclass(frozen=True, slots=True)
class Bucket(Extent):
    """A block of one dtype group that is reduced at once. `index` is the launch order."""

    index: int
    dtype_group: int


@dataclass(frozen=True, slots=True)
class Portion:
    """A run of one parameter's gradient, and its place in a bucket buffer."""

    parameter: int
    bucket: int
    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Layout:
    """The flat layout of one model, cut into `shards` shards. `spans[i]` is the place of parameter i, in
    registration order, without its padding.
    """

    shards: int
    spans: tuple[Extent, ...]
    groups: tuple[GatherGroup, ...]
    group_extents: tuple[Extent, ...]
    buckets: tuple[Bucket, ...]
    replicas: int = 1

    @property
    def alignment(self) -> int:
        """What the length of each block is a multiple of: CHUNK elements for every rank."""
        return self.shards * self.replicas * CHUNK

    @cached_property
    def blocks(self) -> tuple[Extent, ...]:
        """The blocks in flat order; each is a bucket."""
        return tuple(sorted(self.buckets, key=lambda b: b.start))

    @cached_property
    def dtype_group_of(self) -> dict[int, int]:
        """Each parameter's dtype group."""
        return {i: group.dtype_group for group in self.groups for i in group.parameters}

    @property
    def length(self) -> int:
        """Elements of the whole flat layout, padding included."""
        return self.group_extents[-1].stop if self.group_extents else 0

    def dtype_group_extent(self, dtype_group: int) -> Extent:
        """Return the run of the flat layout that holds all gather groups of one dtype group."""
        extents = [
            e for e, r in zip(self.group_extents, self.groups, strict=True) if r.dtype_group == dtype_group
        ]
        return Extent(extents[0].start, extents[-1].stop - extents[0].start)

    def portions(self, parameter: int) -> Iterator[Portion]:
        """Yield where each run of this parameter's gradient goes: one run a bucket, in its own order."""
        span = self.spans[parameter]
        for bucket in self._buckets_of.get(parameter, ()):
            at, stop = max(span.start, bucket.start), min(span.stop, bucket.stop)
            yield Portion(parameter, bucket.index, at - span.start, at - bucket.start, stop - at)

    @cached_property
    def gaps(self) -> list[list[tuple[int, int]]]:
        """The runs (start, stop) of each bucket, by index, that no parameter fills."""
        return [self._gaps(bucket) for bucket in self.buckets]

    def _gaps(self, bucket: Bucket) -> list[tuple[int, int]]:
        filled = sorted((self.spans[i].start, self.spans[i].stop) for i in self.parameters_in(bucket))
        gaps, at = [], bucket.start
        for start, stop in [*filled, (bucket.stop, bucket.stop)]:
            if start > at:
                gaps.append((at - bucket.start, start - bucket.start))
            at = stop
        return gaps

    def parameters_in(self, bucket: Bucket) -> list[int]:
        """Return the parameters that have elements in the bucket."""
        starts, order = self.in_order
        first = max(bisect_right(starts, bucket.start) - 1, 0)
        near = order[first : bisect_left(starts, bucket.stop)]
        return sorted(i for i in near if bucket.start < self.spans[i].stop)

    @cached_property
    def in_order(self) -> tuple[list[int], list[int]]:
        """Where each parameter with elements begins, in flat order, and which parameter it is."""
        order = sorted((i for i, s in enumerate(self.spans) if s.length), key=lambda i: self.spans[i].start)
        return [self.spans[i].start for i in order], order

    @cached_property
    def _buckets_of(self) -> dict[int, list[Bucket]]:
        """The buckets, by index, in which each parameter has elements."""
        buckets_of: dict[int, list[Bucket]] = defaultdict(list)
        for bucket in self.buckets:
            for i in self.parameters_in(bucket):
                buckets_of[i].append(bucket)
        return buckets_of

    def runs(self, span: Extent, blocks: Sequence[Extent]) -> Iterator[tuple[Extent, int, int, int, int]]:
        """Yield the runs of a parameter that lie in `blocks`, in the parameter's order. A run has its block,
        the shard whose part it is, its offset in that part and in the parameter, and its length.
        """
        for block in blocks:
            size = block.length // self.shards
            at, stop = max(span.start, block.start), min(span.stop, block.stop)
            while at < stop:
                shard, within = divmod(at - block.start, size)
                length = min(stop - at, size - within)
                yield block, shard, within, at - span.start, length
                at += length


def plan_layout(
    sizes: Sequence[int],
    groups: Sequence[GatherGroup],
    *,
    shards: int,
    block_size: int,
    replicas: int = 1,
) -> Layout:
    """Lay out parameters of `sizes` elements (registration order) by gather group.

    block_size: an upper limit in elements, but a block holds at least CHUNK elements per rank. replicas: how
    often each shard is kept. Groups of one dtype group must be consecutive.
    """
    alignment = shards * replicas * CHUNK
    limit = max(block_size // alignment, 1) * alignment
    spans = [Extent(0, 0)] * len(sizes)
    extents: list[Extent] = []
    blocks: list[Bucket] = []
    at = 0
    for group in groups:
        begin = at
        for index in group.parameters:
            spans[index] = Extent(at, sizes[index])
            at = spans[index].padded_stop
        at = begin + round_up(at - begin, alignment)
        extents.append(Extent(begin, at - begin))
        blocks += [Bucket(cut, min(limit, at - cut), 0, group.dtype_group) for cut in range(begin, at, limit)]
    layout = Layout(shards, tuple(spans), tuple(groups), tuple(extents), tuple(blocks), replicas)
    return _in_launch_order(layout)


def _in_launch_order(layout: Layout) -> Layout:
    """Number buckets by when backward completes them: it ends with what was registered first."""
    last = {b.start: min(layout.parameters_in(b), default=0) for b in layout.buckets}
    ordered = sorted(layout.buckets, key=lambda b: (-last[b.start], b.start))
    return replace(layout, buckets=_numbered(ordered))


def _numbered(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    return tuple(replace(bucket, index=k) for k, bucket in enumerate(buckets))


def split_layout(layout: Layout, offload_ratio: float) -> tuple[Layout, int]:
    """Return a layout whose first buckets to be reduced hold this share of all elements, and the number of
    these buckets: their optimizer state is offloaded.

    The bucket at the boundary is cut in two; nothing else moves. The device keeps the rest, whose gradients
    backward produces last.
    """
    alignment = layout.alignment
    remaining_elements = round(offload_ratio * layout.length / alignment) * alignment  # to be offloaded
    buckets: list[Bucket] = []
    offloaded = 0
    for bucket in layout.buckets:
        offloaded += remaining_elements > 0
        if 0 < remaining_elements < bucket.length:
            first = replace(bucket, length=remaining_elements)
            buckets += [first, replace(bucket, start=first.stop, length=bucket.length - remaining_elements)]
        else:
            buckets.append(bucket)
        remaining_elements = max(0, remaining_elements - bucket.length)
    return replace(layout, buckets=_numbered(buckets)), offloaded
