"""The line between host and device runs at the share that was asked for, and moves nothing else."""

import pytest
import torch

from zbench.engine.memory.buffers import memory_layout_of
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.optimizer.offload_split import split_layout
from zbench.engine.partition import Extent, GatherGroup, Layout, plan_layout
from zbench.engine.shard_layout import ShardedLayout

CPU = torch.device("cpu")


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
    assert [b.start for b in before.buckets] == [b.start for b in after.buckets if b.start in _starts(before)]
    assert sorted((e for b in after.buckets for e in b.blocks), key=lambda e: e.start) == list(after.blocks)
    stops = [e.stop for e in after.blocks]
    assert [e.start for e in after.blocks] == [0, *stops[:-1]]
    assert all(e.length % alignment == 0 for e in after.blocks)


def _starts(of: Layout) -> set[int]:
    return {b.start for b in of.buckets}


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_every_element_has_one_place(world_size: int, share: float) -> None:
    cut, offloaded = split_layout(layout(world_size, 3000), share)
    shard = ShardedLayout(cut, world_size - 1)
    near, host = DeviceMemory(CPU), DeviceMemory(CPU, "host_")
    buffer = memory_layout_of(shard, offloaded, near, host).zeros(torch.float32)
    assert sum(flat.nbytes for flat in buffer.flats) == 4 * shard.length
    for k, s in enumerate(shard.segments):
        buffer.run(s.local, s.length).fill_(k + 1)
    for k, s in enumerate(shard.segments):
        assert bool((buffer.run(s.local, s.length) == k + 1).all())
        assert bool((buffer.cpu()[s.local : s.local + s.length] == k + 1).all())
    on_host = buffer.bytes_by_category("x").get("host_x", 0)
    assert on_host == 4 * sum(b.length for b in cut.buckets[:offloaded]) // world_size


def test_a_section_has_its_own_part_of_a_placement() -> None:
    cut, offloaded = split_layout(layout(1, 3000), 0.5)
    shard = ShardedLayout(cut, 0)
    whole = memory_layout_of(shard, offloaded, DeviceMemory(CPU), DeviceMemory(CPU, "host_"))
    second = cut.dtype_group_extent(1)
    part = whole.within(second)
    assert sum(e.length for _, extents in part.parts for e in extents) == second.length
    assert all(second.start <= e.start and e.stop <= second.stop for _, es in part.parts for e in es)
    assert whole.within(Extent(0, 0)).zeros(torch.float32).cpu().numel() == 0
