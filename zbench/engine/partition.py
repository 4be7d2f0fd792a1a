"""The flat layout: where every element of every parameter is, as pure integers.

All trained parameters are laid end to end in one index space, the flat layout, in the order in which backward
produces their gradients. Every parameter begins at a multiple of CHUNK elements; the gaps stay zero.

The flat layout is cut into gather groups (parameters that are stored and gathered together), a group into
*blocks*, and a block into as many equal parts as there are shards; part s belongs to the ranks that keep
shard s. So a block is gathered in place, and a rank's parts of consecutive blocks are adjacent in its *local*
index space. A *bucket* is a run of consecutive blocks that is reduced at once; its buffer holds all parts of
shard 0 first, then those of shard 1, and so on.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True, slots=True)
class GatherGroup:
    """Parameters (indices, in flat order) that are stored and gathered together, and the number of their
    dtype group.
    """

    parameters: tuple[int, ...]
    dtype_group: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive blocks of one dtype group that are reduced at once. `index` is the launch order."""

    index: int
    dtype_group: int
    blocks: tuple[Extent, ...]

    @property
    def start(self) -> int:
        return self.blocks[0].start

    @property
    def stop(self) -> int:
        return self.blocks[-1].stop

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Portion:
    """A run of one parameter's gradient, and its place in a bucket buffer."""

    bucket: int
    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Layout:
    """The flat layout of one model, cut into `shards` shards. `spans[i]` is that of parameter i in
    registration order.
    """

    shards: int
    spans: tuple[Extent, ...]
    groups: tuple[GatherGroup, ...]
    group_extents: tuple[Extent, ...]
    blocks: tuple[Extent, ...]
    buckets: tuple[Bucket, ...]

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
        """Yield where each run of this parameter's gradient goes, in the parameter's own order."""
        for bucket in self._buckets_of.get(parameter, ()):
            yield from _merge(self._portions_in(self.spans[parameter], bucket))

    def gaps(self, bucket: Bucket) -> list[tuple[int, int]]:
        """Return the runs (start, stop) of a bucket buffer that no parameter fills."""
        filled = sorted(
            (p.target, p.target + p.length)
            for i in self.parameters_in(bucket)
            for p in self._portions_in(self.spans[i], bucket)
        )
        gaps, at = [], 0
        for start, stop in [*filled, (bucket.length, bucket.length)]:
            if start > at:
                gaps.append((at, start))
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
        """Yield what lies in `blocks` of a parameter, in its order: the block, the shard whose part it is,
        its offset in that part and in the parameter, and its length.
        """
        for block in blocks:
            size = block.length // self.shards
            at, stop = max(span.start, block.start), min(span.stop, block.stop)
            while at < stop:
                shard, within = divmod(at - block.start, size)
                length = min(stop - at, size - within)
                yield block, shard, within, at - span.start, length
                at += length

    def _portions_in(self, span: Extent, bucket: Bucket) -> Iterator[Portion]:
        if len(bucket.blocks) == 1:  # the shards' parts follow one another: one run, however many there are
            at, stop = max(span.start, bucket.start), min(span.stop, bucket.stop)
            if at < stop:
                yield Portion(bucket.index, at - span.start, at - bucket.start, stop - at)
            return
        part = bucket.length // self.shards
        for block, shard, within, source, length in self.runs(span, bucket.blocks):
            target = shard * part + (block.start - bucket.start) // self.shards + within
            yield Portion(bucket.index, source, target, length)


def _merge(portions: Iterator[Portion]) -> Iterator[Portion]:
    last: Portion | None = None
    for p in portions:
        if last and p.source == last.source + last.length and p.target == last.target + last.length:
            last = Portion(last.bucket, last.source, last.target, last.length + p.length)
            continue
        if last:
            yield last
        last = p
    if last:
        yield last


def plan_layout(
    sizes: Sequence[int],
    groups: Sequence[GatherGroup],
    *,
    shards: int,
    block_size: int,
    bucket_size: int,
    standalone_threshold: float = math.inf,
) -> Layout:
    """Lay out parameters of `sizes` elements (registration order) by gather group.

    block_size and bucket_size are upper limits in elements, but a block holds at least CHUNK elements per
    shard and a bucket at least one block. Groups of one dtype group must be consecutive.
    standalone_threshold: blocks of at least so many elements are buckets of their own.
    """
    alignment = shards * CHUNK
    limit = max(block_size // alignment, 1) * alignment
    spans = [Extent(0, 0)] * len(sizes)
    extents: list[Extent] = []
    blocks: list[Extent] = []
    owners: list[int] = []
    at = 0
    for group in groups:
        begin = at
        for index in group.parameters:
            spans[index] = Extent(at, sizes[index])
            at = spans[index].padded_stop
        at = begin + round_up(at - begin, alignment)
        extents.append(Extent(begin, at - begin))
        cuts = range(begin, at, limit)
        blocks += [Extent(cut, min(limit, at - cut)) for cut in cuts]
        owners += [group.dtype_group] * len(cuts)
    layout = Layout(shards, tuple(spans), tuple(groups), tuple(extents), tuple(blocks), ())
    buckets = _in_launch_order(layout, _bucketed(blocks, owners, bucket_size, standalone_threshold))
    return replace(layout, buckets=buckets)


def _bucketed(
    blocks: Sequence[Extent], dtype_groups: Sequence[int], bucket_size: int, standalone_threshold: float
) -> list[Bucket]:
    runs: list[tuple[int, list[Extent]]] = []
    for block, dtype_group in zip(blocks, dtype_groups, strict=True):
        joined = block.stop - runs[-1][1][0].start if runs else 0
        small = block.length < standalone_threshold and joined - block.length < standalone_threshold
        if runs and runs[-1][0] == dtype_group and small and joined <= bucket_size:
            runs[-1][1].append(block)
        else:
            runs.append((dtype_group, [block]))
    return [Bucket(k, dtype_group, tuple(run)) for k, (dtype_group, run) in enumerate(runs)]


def _in_launch_order(layout: Layout, buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Number buckets by when backward completes them: it ends with what was registered first."""
    last = {b.index: min(layout.parameters_in(b), default=0) for b in buckets}
    ordered = sorted(buckets, key=lambda b: (-last[b.index], b.start))
    return tuple(replace(b, index=k) for k, b in enumerate(ordered))


def split_layout(layout: Layout, offload_ratio: float) -> tuple[Layout, int]:
    """Return a layout whose first buckets to be reduced hold this share of all elements, and the number of
    these buckets: their optimizer state is offloaded.

    The bucket at the boundary is cut in two; nothing else moves. The device keeps the rest, whose gradients
    backward produces last.
    """
    alignment = layout.shards * CHUNK
    left = round(offload_ratio * layout.length / alignment) * alignment  # elements still to be offloaded
    buckets: list[Bucket] = []
    blocks = list(layout.blocks)
    offloaded = 0
    for bucket in layout.buckets:
        offloaded += left > 0
        if 0 < left < bucket.length:
            first, second = _cut(bucket.blocks, bucket.start + left)
            buckets += [replace(bucket, blocks=first), replace(bucket, blocks=second)]
            blocks = [b for b in blocks if not bucket.start <= b.start < bucket.start + bucket.length]
            blocks = sorted([*blocks, *first, *second], key=lambda b: b.start)
        else:
            buckets.append(bucket)
        left = max(0, left - bucket.length)
    numbered = tuple(replace(bucket, index=k) for k, bucket in enumerate(buckets))
    return replace(layout, blocks=tuple(blocks), buckets=numbered), offloaded


def _cut(blocks: tuple[Extent, ...], line: int) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    before = [b if b.stop <= line else Extent(b.start, line - b.start) for b in blocks if b.start < line]
    after = [b if b.start >= line else Extent(line, b.stop - line) for b in blocks if b.stop > line]
    return tuple(before), tuple(after)
