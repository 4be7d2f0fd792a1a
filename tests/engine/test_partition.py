"""The flat layout keeps to its sizes, whatever the parameters; the parity lattice shows what lies where."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.engine.partition import CHUNK, GatherGroup, Layout, plan_layout, round_up, split_layout


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
