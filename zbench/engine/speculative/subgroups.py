"""Subgroups: the segments of one bucket that are updated together, small enough to overlap and to share."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from zbench.engine.adam import NORM_CHUNK
from zbench.engine.partition import Bucket, Extent
from zbench.engine.shard_layout import Segment, ShardLayout, packed

LARGEST = 1 << 19
"""Elements. An update of so many takes about half a millisecond: little is left over after backward, and the
cost of handing it to a worker (some ten microseconds) does not show."""


@dataclass(frozen=True, slots=True)
class Subgroup:
    """Segments (local order) that one update covers; `index` counts subgroups over all buckets."""

    index: int
    segments: tuple[Segment, ...]


def cut(shard: ShardLayout, buckets: Sequence[Bucket], size: int) -> list[list[Subgroup]]:
    """Return the subgroups of each bucket, by bucket index, of at most `size` (and at most LARGEST) elements
    each.
    """
    alignment = max(min(size, LARGEST) // NORM_CHUNK, 1) * NORM_CHUNK
    numbers = count()
    return [
        [Subgroup(next(numbers), tuple(segments)) for segments in _packed(shard, bucket, alignment)]
        for bucket in sorted(buckets, key=lambda b: b.index)
    ]


def _packed(shard: ShardLayout, bucket: Bucket, alignment: int) -> list[list[Segment]]:
    extent = shard.local(Extent(bucket.start, bucket.length))
    inside = (s for s in shard.segments if extent.start <= s.local < extent.stop)
    return packed((piece for s in inside for piece in s.cut(alignment)), alignment, lambda s: s.length)
