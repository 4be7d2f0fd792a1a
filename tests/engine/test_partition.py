"""The flat layout keeps to its sizes, whatever the parameters; the parity lattice shows what lies where."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.engine.partition import GatherGroup, Layout, plan_layout


@dataclass(frozen=True)
class Case:
    """A layout, and the parameters that went into it."""

    sizes: list[int]
    layout: Layout


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
    return Case(sizes, plan_layout(sizes, groups, shards=shards, block_size=block))


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
