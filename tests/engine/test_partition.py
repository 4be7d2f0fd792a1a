"""The flat layout keeps to its sizes, whatever the parameters; the parity lattice shows what lies where."""

from dataclasses import dataclass

from hypothesis import given, settings
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
    dtype_groups = [sorted(draw(st.sets(st.sampled_from(range(len(sizes)))))) if sizes else []]
    dtype_groups.append([i for i in range(len(sizes)) if i not in dtype_groups[0]])
    groups = []
    for dtype_group, members in enumerate(s for s in dtype_groups if s):
        cut = draw(st.integers(0, len(members)))
        backward = members[::-1]
        groups += [GatherGroup(tuple(part), dtype_group) for part in (backward[:cut], backward[cut:]) if part]
    shards, block = draw(st.integers(1, 5)), draw(st.integers(1, 5000))
    return Case(sizes, plan_layout(sizes, groups, shards=shards, block_size=block), block)


@settings(max_examples=50)
@given(cases(), st.floats(0.0, 1.0))
def test_blocks_tile_the_layout_and_the_first_hold_the_offloaded_share(case: Case, share: float) -> None:
    alignment = case.layout.shards * CHUNK
    after, offloaded = split_layout(case.layout, share)
    held = sum(b.length for b in after.buckets[:offloaded])
    assert held == round(share * case.layout.length / alignment) * alignment
    for layout in (case.layout, after):
        assert all(span.start % CHUNK == 0 and span.stop <= layout.length for span in layout.spans)
        assert [block.start for block in layout.blocks] == [0, *(b.stop for b in layout.blocks)][:-1]
        assert all(0 < block.length <= max(case.block_size, alignment) for block in layout.blocks)
        assert all(block.length % alignment == 0 for block in layout.blocks)
        assert sum(block.length for block in layout.blocks) == layout.length
        least = sum(round_up(size, CHUNK) for size in case.sizes)
        assert least <= layout.length < least + alignment * max(len(layout.groups), 1)


@settings(max_examples=50)
@given(cases())
def test_a_gradient_is_one_run_of_each_of_its_buckets_in_launch_order(case: Case) -> None:
    layout = case.layout
    last = [min(layout.parameters_in(b), default=0) for b in layout.buckets]
    assert last == sorted(last, reverse=True), "in the order in which backward completes them"
    filled = {bucket.index: [0] * bucket.length for bucket in layout.buckets}
    copies = 0
    for index, size in enumerate(case.sizes):
        at = 0
        for p in layout.portions(index):
            assert p.source == at
            filled[p.bucket][p.target : p.target + p.length] = [1] * p.length
            at += p.length
            copies += 1
        assert at == size
    assert copies <= len(case.sizes) + len(layout.buckets)
    for bucket in layout.buckets:
        for start, stop in layout.gaps[bucket.index]:
            assert not any(filled[bucket.index][start:stop])
            filled[bucket.index][start:stop] = [1] * (stop - start)
        assert all(filled[bucket.index])
