"""Subgroups: the segments of one bucket that are updated together, small enough to overlap and to share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from zbench.engine.adam import NORM_CHUNK
from zbench.engine.partition import Bucket, Extent
from zbench.engine.shard_layout import Segment, ShardLayout

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
    found: list[list[Subgroup]] = []
    count = 0
    for bucket in sorted(buckets, key=lambda b: b.index):
        of_bucket = [
            Subgroup(count + k, tuple(segments))
            for k, segments in enumerate(_packed(shard, bucket, alignment))
        ]
        count += len(of_bucket)
        found.append(of_bucket)
    return found


def _packed(shard: ShardLayout, bucket: Bucket, alignment: int) -> list[list[Segment]]:
    packed: list[list[Segment]] = []
    room = 0
    for piece in _pieces(shard, bucket, alignment):
        if piece.length > room:
            packed.append([])
            room = alignment
        packed[-1].append(piece)
        room -= piece.length
    return packed


def _pieces(shard: ShardLayout, bucket: Bucket, alignment: int) -> Iterator[Segment]:
    extent = shard.local(Extent(bucket.start, bucket.length))
    for s in shard.segments:
        if extent.start <= s.local < extent.stop:
            for at in range(0, s.length, alignment):
                yield replace(s, flat=s.flat + at, local=s.local + at, length=min(alignment, s.length - at))
