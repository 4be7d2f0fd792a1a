"""Splits a layout into the buckets whose optimizer state is offloaded and those that the device keeps."""

from dataclasses import replace

from zbench.engine.adam.contract import NORM_CHUNK
from zbench.engine.partition import Bucket, Extent, Layout


def split_layout(layout: Layout, share: float) -> tuple[Layout, int]:
    """Return a layout whose first buckets to be reduced hold `share` of all elements, and the number of these
    buckets.

    The bucket at the boundary is cut in two; nothing else moves. The device keeps the rest, whose gradients
    backward produces last.
    """
    alignment = layout.shards * NORM_CHUNK
    room = round(share * layout.length / alignment) * alignment  # elements still to be offloaded
    buckets: list[Bucket] = []
    blocks = list(layout.blocks)
    offloaded = 0
    for bucket in layout.buckets:
        offloaded += room > 0
        if 0 < room < bucket.length:
            first, second = _cut(bucket.blocks, bucket.start + room)
            buckets += [replace(bucket, blocks=first), replace(bucket, blocks=second)]
            blocks = [b for b in blocks if not bucket.start <= b.start < bucket.start + bucket.length]
            blocks = sorted([*blocks, *first, *second], key=lambda b: b.start)
        else:
            buckets.append(bucket)
        room = max(0, room - bucket.length)
    numbered = tuple(replace(bucket, index=k) for k, bucket in enumerate(buckets))
    return replace(layout, blocks=tuple(blocks), buckets=numbered), offloaded


def _cut(blocks: tuple[Extent, ...], line: int) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    before = [b if b.stop <= line else Extent(b.start, line - b.start) for b in blocks if b.start < line]
    after = [b if b.start >= line else Extent(line, b.stop - line) for b in blocks if b.stop > line]
    return tuple(before), tuple(after)
