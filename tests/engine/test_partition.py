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


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw parameters, groups in backward order over one or two dtypes, and a size of blocks."""
    sizes = draw(st.lists(st.integers(0, 3000), max_size=8))
    world_size = draw(st.integers(1, 5))
    dtype_groups = [sorted(draw(st.sets(st.sampled_from(range(len(sizes)))))) if sizes else []]
    dtype_groups.append([i for i in range(len(sizes)) if i not in dtype_groups[0]])
    groups = []
    for dtype_group, members in enumerate(s for s in dtype_groups if s):
        cut = draw(st.integers(0, len(members)))
        backward = members[::-1]
        groups += [GatherGroup(tuple(part), dtype_group) for part in (backward[:cut], backward[cut:]) if part]
    block = draw(st.integers(1, 5000))
    return Case(sizes, plan_layout(sizes, groups, shards=world_size, block_size=block), block)


@given(cases())
def test_parameters_begin_at_chunks_and_blocks_tile_the_layout(case: Case) -> None:
    layout = case.layout
    alignment = case.layout.shards * CHUNK
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
def test_each_block_is_one_bucket_in_launch_order(case: Case) -> None:
    layout = case.layout
    assert sorted(layout.buckets, key=lambda b: b.start) == list(layout.blocks)
    assert [bucket.index for bucket in layout.buckets] == list(range(len(layout.buckets)))
    last = [min(layout.parameters_in(b), default=0) for b in layout.buckets]
    assert last == sorted(last, reverse=True), "in the order in which backward completes them"


@given(cases())
def test_a_gradient_is_one_run_of_each_of_its_buckets_whatever_the_world(case: Case) -> None:
    layout, copies = case.layout, 0
    filled = {bucket.index: [0] * bucket.length for bucket in layout.buckets}
    for index, size in enumerate(case.sizes):
        at = 0
        portions = list(layout.portions(index))
        for p in portions:
            assert p.source == at
            filled[p.bucket][p.target : p.target + p.length] = [1] * p.length
            at += p.length
        assert at == size
        copies += len(portions)
    assert copies <= len(case.sizes) + len(layout.buckets)
    for bucket in layout.buckets:
        for start, stop in layout.gaps[bucket.index]:
            assert not any(filled[bucket.index][start:stop])
            filled[bucket.index][start:stop] = [1] * (stop - start)
        assert all(filled[bucket.index])


def layout(world_size: int, block: int) -> Layout:
    return plan_layout(
        [700, 1, 256, 5000, 1300, 40],
        [GatherGroup((5, 4, 3)), GatherGroup((2, 1, 0), 1)],
        shards=world_size,
        block_size=block,
    )


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("block", [1, 3000, 10**9])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.77, 1.0])
def test_the_first_buckets_hold_the_share(world_size: int, block: int, share: float) -> None:
    before = layout(world_size, block)
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
    stops = [e.stop for e in after.blocks]
    assert [e.start for e in after.blocks] == [0, *stops[:-1]]
    assert all(e.length % alignment == 0 for e in after.blocks)
