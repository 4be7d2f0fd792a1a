"""Which processors the optimizer's threads get."""

import pytest
from torch import nn

from zbench.engine import Instruments, build_engine
from zbench.engine.adam import AdamBackend, NativeAdam
from zbench.engine.optimizer.threads import choose, share
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool
from zbench.topology import Host, this_host

SOCKETS = {0: tuple(range(8)), 1: tuple(range(8, 16))}


def host(allowed: range, nodes: dict[int, tuple[int, ...]], online: int) -> Host:
    return Host(tuple((processor,) for processor in allowed), nodes, online)


@pytest.mark.parametrize(
    ("count", "computing", "allowed", "near", "alone", "expected"),
    [
        (None, 1, range(2), 0, True, (1, (1,))),
        (None, 2, range(2), 0, True, (1, ())),  # no processor to spare: share them
        (None, 4, range(16), 0, True, (4, (4, 5, 6, 7))),  # backward stays on this node too
        (10, 4, range(16), 0, True, (10, (*range(8), 14, 15))),  # near the memory, at the end
        (2, 1, range(16), 0, False, (2, ())),  # several ranks share the machine: who knows who pins where
        (2, 1, range(4, 8), 0, False, (2, (6, 7))),  # a rank with processors of its own
    ],
)
def test_threads_leave_backward_its_processors(
    count: int | None,
    computing: int,
    allowed: range,
    near: int,
    alone: bool,
    expected: tuple[int, tuple[int, ...]],
) -> None:
    online = 2 if len(allowed) == 2 else 16
    nodes = {0: tuple(range(2))} if online == 2 else SOCKETS
    machine = host(allowed, nodes, online)
    threads = choose(count, computing=computing, host=machine, near=near, alone=alone)
    assert (threads.count, threads.processors) == expected


@pytest.mark.parametrize(
    ("allowed", "near", "ranks", "expected"),
    [
        (range(16), 0, 1, 8),  # the node of the GPU
        (range(16), 1, 4, 2),  # shared by the ranks of this host
        (range(4, 8), 0, 4, 4),  # a rank with processors of its own
        (range(8), 1, 2, 4),  # none of its processors is near
    ],
)
def test_a_rank_takes_its_share_of_near_processors(
    allowed: range, near: int, ranks: int, expected: int
) -> None:
    online = 8 if len(allowed) == 8 else 16
    assert share(host(allowed, SOCKETS, online), near, ranks) == expected


@pytest.mark.parametrize("schedule", ["after_backward", "speculative"])
def test_optimizer_threads_counts_for_every_schedule(schedule: str) -> None:
    """They update all that no update under backward has taken."""
    adams: list[AdamBackend] = []
    instruments = Instruments(wrap_adam=lambda adam: adams.append(adam) or adam)
    spec = {"zero_stage": 1, "offload_optimizer": "cpu", "offload_schedule": schedule, "optimizer_threads": 3}
    build_engine(nn.Linear(4, 2), EngineSpec.model_validate(spec), instruments=instruments).close()
    (adam,) = adams
    assert isinstance(adam, NativeAdam)
    assert adam.threads == 3


@pytest.mark.check
@pytest.mark.skipif(len(this_host().allowed) < 2, reason="a thread is pinned where one can be spared")
@pytest.mark.parametrize("world_size", [1, 2])
def test_threads_of_two_ranks_share_no_pinned_processor(ranks: RankPool, world_size: int) -> None:
    machine = this_host()
    has_its_own = world_size == 1 or len(machine.allowed) < machine.online
    for pinned in ranks.run(world_size, "tests.engine.speculative.running:pinned_threads"):
        assert pinned == [1] * has_its_own
