"""Subgroups, halves, threads: each on its own."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.engine.ranks import RankPool
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.partition import Extent, GatherGroup, plan_layout
from zbench.engine.shard_layout import ShardedLayout
from zbench.engine.speculative.rollback import DoubleBuffer, Journal, RollbackTarget
from zbench.engine.speculative.threads import MOST, Machine, choose, this_machine
from zbench.engine.speculative.updates import cut


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 1000, 10**9])
@pytest.mark.parametrize("bucket", [1, 3000, 10**9])
def test_subgroups_cover_every_segment_once_within_its_bucket(
    world_size: int, size: int, bucket: int
) -> None:
    sizes = [700, 1, 256, 5000, 1300, 40]
    layout = plan_layout(
        sizes,
        [GatherGroup((5, 4, 3)), GatherGroup((2, 1, 0), 1)],
        shards=world_size,
        block_size=2000,
        bucket_size=bucket,
    )
    for rank in range(world_size):
        shard = ShardedLayout(layout, rank)
        groups = cut(shard, layout.buckets, size)
        assert len(groups) == len(layout.buckets)
        assert [g.index for of in groups for g in of] == list(range(sum(map(len, groups))))
        covered = sorted((s.local, s.length) for of in groups for g in of for s in g.segments)
        assert sum(length for _, length in covered) == sum(s.length for s in shard.segments)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(covered))
        for of_bucket, place in zip(groups, layout.buckets, strict=True):
            extent = shard.local(Extent(place.start, place.length))
            for group in of_bucket:
                assert all(extent.start <= s.local < extent.stop for s in group.segments)
                assert sum(s.length for s in group.segments) <= max(size, 256)


class Box:
    """Keeps flat buffers."""

    memory = DeviceMemory(torch.device("cpu"))

    def __init__(self, *buffers: torch.Tensor) -> None:
        self.buffers = list(buffers)


def test_a_swap_exchanges_halves_and_moves_parameters_over() -> None:
    state, values = Box(torch.arange(8.0), torch.ones(8)), Box(torch.arange(12.0))
    parameter = nn.Parameter(values.buffers[0][4:10].view(2, 3))
    parameter.data = values.buffers[0][4:10].view(2, 3)
    outside = torch.zeros(5)
    halves = DoubleBuffer(
        [RollbackTarget(state, "host_speculative"), RollbackTarget(values, "speculative")], [parameter]
    )
    assert halves.other(outside) is outside
    halves.other(state.buffers[0][2:4]).fill_(7.0)
    halves.other(values.buffers[0]).copy_(-torch.arange(12.0))
    assert torch.equal(state.buffers[0], torch.arange(8.0))
    assert torch.equal(parameter, torch.tensor([[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]))
    halves.commit()
    assert torch.equal(state.buffers[0][2:4], torch.full((2,), 7.0))
    assert torch.equal(parameter, -torch.tensor([[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]))
    halves.commit()
    assert torch.equal(state.buffers[0], torch.arange(8.0))
    assert torch.equal(parameter.flatten(), torch.arange(4.0, 10.0))
    assert halves.bytes_by_category() == {"host_speculative": 64, "speculative": 48}


SOCKETS = (tuple(range(8)), tuple(range(8, 16)))


@pytest.mark.parametrize(
    ("wanted", "computing", "allowed", "near", "alone", "expected"),
    [
        (None, 1, range(2), 0, True, (1, (1,))),
        (None, 2, range(2), 0, True, (1, ())),  # no processor to spare: share them
        (None, 4, range(16), 0, True, (4, (4, 5, 6, 7))),  # backward stays on this node too
        (None, 4, range(16), 1, True, (4, (12, 13, 14, 15))),
        (2, 4, range(16), 0, True, (2, (6, 7))),  # near the memory, at the end
        (10, 4, range(16), 0, True, (10, (*range(8), 14, 15))),
        (2, 1, range(16), 0, False, (2, ())),  # several ranks share the machine: who knows who pins where
        (2, 1, range(4, 8), 0, False, (2, (6, 7))),  # a rank with processors of its own
        (3, 2, range(4), 0, True, (3, ())),
    ],
)
def test_threads_leave_backward_its_processors(
    wanted: int | None,
    computing: int,
    allowed: range,
    near: int,
    alone: bool,
    expected: tuple[int, tuple[int, ...]],
) -> None:
    online = 2 if len(allowed) == 2 else 16
    nodes = (tuple(range(2)),) if online == 2 else SOCKETS
    machine = Machine(tuple(allowed), nodes, online)
    found = choose(wanted, computing=computing, machine=machine, near=near, alone=alone)
    assert (found.count, found.processors) == expected


def test_no_more_threads_are_taken_than_help() -> None:
    machine = Machine(tuple(range(128)), (tuple(range(128)),), 128)
    assert choose(None, computing=4, machine=machine, near=0, alone=True).count == MOST


def test_this_machine_has_processors_in_nodes() -> None:
    machine = this_machine()
    assert machine.allowed
    assert set(machine.allowed) <= {p for node in machine.nodes for p in node}


@pytest.mark.skipif(len(this_machine().allowed) < 2, reason="a thread is pinned where one can be spared")
@pytest.mark.parametrize("world_size", [1, 2])
def test_threads_are_pinned_only_where_no_other_rank_pins_to_the_same_processor(
    ranks: RankPool, world_size: int
) -> None:
    machine = this_machine()
    has_its_own = world_size == 1 or len(machine.allowed) < machine.online
    for pinned in ranks.run(world_size, "tests.engine.speculative.places:pinned_threads"):
        assert pinned == [1] * has_its_own


def test_a_journal_holds_the_covered_elements_and_a_commit_copies_them() -> None:
    memory, state = DeviceMemory(torch.device("cpu")), Box(torch.arange(32.0))
    (buffer,) = state.buffers
    views = [buffer[20:24], buffer[3:7], buffer[7:10]]
    journal = Journal([RollbackTarget(state, "rollback")], views)
    assert journal.bytes_by_category() == {"rollback": memory.occupied(7 * 4) + memory.occupied(4 * 4)}
    for view in views:
        journal.other(view).fill_(-1.0)
    assert torch.equal(buffer, torch.arange(32.0)), "nothing changes before the commit"
    journal.commit(views)
    assert buffer.tolist() == [-1.0 if 3 <= k < 10 or 20 <= k < 24 else float(k) for k in range(32)]
    outside = torch.zeros(4)
    assert journal.other(outside) is outside
