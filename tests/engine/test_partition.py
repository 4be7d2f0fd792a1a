"""The flat layout covers every element once, whatever the sizes."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.engine.gradients.norm import canonical_order
from zbench.engine.partition import CHUNK, GatherGroup, Layout, plan_layout, round_up, split_layout
from zbench.engine.shard_layout import ShardedLayout, WholeLayout


@dataclass(frozen=True)
class Case:
    """A layout, and the parameters that went into it."""

    sizes: list[int]
    layout: Layout
    block_size: int
    bucket_size: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw parameters, groups in backward order over one or two dtypes, and sizes of blocks and buckets."""
    sizes = draw(st.lists(st.integers(0, 3000), max_size=8))
    world_size = draw(st.integers(1, 5))
    dtype_groups = [sorted(draw(st.sets(st.sampled_from(range(len(sizes)))))) if sizes else []]
    dtype_groups.append([i for i in range(len(sizes)) if i not in dtype_groups[0]])
    groups = []
    for dtype_group, members in enumerate(s for s in dtype_groups if s):
        cut = draw(st.integers(0, len(members)))
        backward = members[::-1]
        groups += [GatherGroup(tuple(part), dtype_group) for part in (backward[:cut], backward[cut:]) if part]
    block, bucket = draw(st.integers(1, 5000)), draw(st.integers(1, 10000))
    standalone_threshold = draw(st.sampled_from([float("inf"), 1, 1024]))
    layout = plan_layout(
        sizes,
        groups,
        shards=world_size,
        block_size=block,
        bucket_size=bucket,
        standalone_threshold=standalone_threshold,
    )
    return Case(sizes, layout, block, bucket)


def numbered(case: Case) -> np.ndarray:
    """Return the flat layout with every parameter's elements numbered from 1; zero elsewhere."""
    flat = np.zeros(case.layout.length, dtype=np.int64)
    at = 1
    for span, size in zip(case.layout.spans, case.sizes, strict=True):
        assert not flat[span.start : span.stop].any(), "two parameters overlap"
        flat[span.start : span.stop] = np.arange(at, at + size)
        at += size
    return flat


@given(cases())
def test_parameters_begin_at_chunks_and_blocks_tile_the_layout(case: Case) -> None:
    layout, alignment = case.layout, case.layout.shards * CHUNK
    assert all(span.start % CHUNK == 0 and span.stop <= layout.length for span in layout.spans)
    stops = [0]
    for block in layout.blocks:
        assert block.start == stops[-1]
        assert 0 < block.length <= max(case.block_size, alignment)
        assert block.length % alignment == 0
        stops.append(block.stop)
    assert stops[-1] == layout.length
    least = sum(round_up(size, CHUNK) for size in case.sizes)
    assert least <= layout.length < least + layout.shards * CHUNK * max(len(layout.groups), 1)


@given(cases())
def test_buckets_hold_each_block_once_and_keep_to_their_size(case: Case) -> None:
    layout = case.layout
    blocks = sorted((b for bucket in layout.buckets for b in bucket.blocks), key=lambda b: b.start)
    assert tuple(blocks) == layout.blocks
    for index, bucket in enumerate(layout.buckets):
        assert bucket.index == index
        assert bucket.length <= case.bucket_size or len(bucket.blocks) == 1
    last = [min(layout.parameters_in(b), default=0) for b in layout.buckets]
    assert last == sorted(last, reverse=True), "in the order in which backward completes them"


@given(cases())
def test_a_send_buffer_holds_each_owners_part_in_the_order_of_its_shard(case: Case) -> None:
    layout, flat = case.layout, numbered(case)
    shards = [ShardedLayout(layout, rank) for rank in range(layout.shards)]
    bucket_buffers = [np.full(bucket.length, -1) for bucket in layout.buckets]
    for index, (span, size) in enumerate(zip(layout.spans, case.sizes, strict=True)):
        covered = 0
        for p in layout.portions(index):
            assert p.source == covered
            place = bucket_buffers[p.bucket][p.target : p.target + p.length]
            assert (place == -1).all()
            place[:] = flat[span.start + p.source : span.start + p.source + p.length]
            covered += p.length
        assert covered == size
    for bucket, send in zip(layout.buckets, bucket_buffers, strict=True):
        for start, stop in layout.gaps(bucket):
            assert (send[start:stop] == -1).all()
            send[start:stop] = 0
        for rank, part in enumerate(send.reshape(layout.shards, -1)):
            owned = [shards[rank].part(block) for block in bucket.blocks]
            assert (part == np.concatenate([flat[p.start : p.stop] for p in owned])).all()


@given(cases(), st.booleans())
def test_shards_own_every_element_once(case: Case, whole: bool) -> None:
    layout, flat = case.layout, numbered(case)
    seen = np.zeros_like(flat)
    for rank in range(layout.shards):
        shard = (WholeLayout if whole else ShardedLayout)(layout, rank)
        assert shard.length == layout.length // (1 if whole else layout.shards)
        at = 0
        for s in shard.segments:
            assert s.local >= at
            at = s.local + s.length
            assert s.flat % CHUNK == s.local % CHUNK == s.length % CHUNK == 0
            seen[s.flat : s.flat + s.length] += 1
        assert at <= shard.length
    copies = layout.shards if whole else 1
    assert (seen[flat > 0] == copies).all()
    assert seen.max(initial=0) <= copies


@given(cases())
@settings(max_examples=50)
def test_canonical_order_undoes_the_sharding(case: Case) -> None:
    layout = case.layout
    chunks = np.arange(layout.length // CHUNK)
    gathered = [
        chunks[p.start // CHUNK : p.stop // CHUNK]
        for rank in range(layout.shards)
        for p in (ShardedLayout(layout, rank).part(block) for block in layout.blocks)
    ]
    ordered = np.concatenate([np.empty(0, dtype=np.int64), *gathered])[canonical_order(layout)]
    expected = [np.arange(s.start // CHUNK, s.padded_stop // CHUNK) for s in layout.spans]
    assert (ordered == np.concatenate([np.empty(0, dtype=np.int64), *expected])).all()


def layout(world_size: int, bucket: int) -> Layout:
    return plan_layout(
        [700, 1, 256, 5000, 1300, 40],
        [GatherGroup((5, 4, 3)), GatherGroup((2, 1, 0), 1)],
        shards=world_size,
        block_size=1800,
        bucket_size=bucket,
    )


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("bucket", [1, 3000, 10**9])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.77, 1.0])
def test_the_first_buckets_hold_the_share(world_size: int, bucket: int, share: float) -> None:
    before = layout(world_size, bucket)
    after, offloaded = split_layout(before, share)
    alignment = world_size * 256
    assert (
        sum(b.length for b in after.buckets[:offloaded])
        == round(share * before.length / alignment) * alignment
    )
    assert (after.spans, after.groups, after.group_extents) == (
        before.spans,
        before.groups,
        before.group_extents,
    )
    assert [b.index for b in after.buckets] == list(range(len(after.buckets)))
    assert len(after.buckets) - len(before.buckets) in (0, 1)
    assert {b.start for b in before.buckets} <= {b.start for b in after.buckets}
    assert sorted((e for b in after.buckets for e in b.blocks), key=lambda e: e.start) == list(after.blocks)
    stops = [e.stop for e in after.blocks]
    assert [e.start for e in after.blocks] == [0, *stops[:-1]]
    assert all(e.length % alignment == 0 for e in after.blocks)
