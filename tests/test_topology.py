"""Processors of ranks, on machines as they are sold."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench import topology
from zbench.engine.optimizer.threads import choose, share
from zbench.topology import Host, node_of_device, this_host


def host(nodes: dict[int, range], siblings: int = 2, allowed: set[int] | None = None) -> Host:
    """Return a machine of these cores by NUMA node; the other processors of a core have higher numbers."""
    count = sum(map(len, nodes.values()))
    whole = {
        node: tuple(core + count * k for k in range(siblings) for core in cores)
        for node, cores in nodes.items()
    }
    every = [tuple(core + count * k for k in range(siblings)) for cores in nodes.values() for core in cores]
    usable = [tuple(p for p in core if allowed is None or p in allowed) for core in sorted(every)]
    return Host(tuple(core for core in usable if core), whole, count * siblings)


NPS4 = {node: range(16 * node, 16 * node + 16) for node in range(8)}
TOPOLOGIES = {
    "DGX A100": (host(NPS4), [3, 3, 1, 1, 7, 7, 5, 5]),
    "four GH200": (
        host({0: range(72), 1: range(72, 144), 2: range(144, 216), 3: range(216, 288)}
             | dict.fromkeys((4, 12, 20, 28), range(0)), siblings=1), [0, 1, 2, 3],
    ),
    "AC922": (host({0: range(22), 8: range(22, 44), 252: range(0), 255: range(0)}, siblings=4), [0, 0, 8, 8]),
    "no NUMA": (host({0: range(8)}), [None] * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_rank_has_processors_of_its_gpus_node(name: str) -> None:
    machine, gpus = TOPOLOGIES[name]
    given_out = machine.share_out(gpus)
    for node, processors in zip(gpus, given_out, strict=True):
        assert processors is not None
        assert len(processors) >= 2
        assert node is None or set(processors) <= set(machine.nodes[node])
    everything = [processor for processors in given_out for processor in processors or ()]
    assert len(everything) == len(set(everything))
    assert len({len(processors or ()) for processors in given_out}) == 1, "none is faster"


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_speculative_rank_updates_with_all_that_its_backward_leaves(name: str) -> None:
    """In rank order, ranks of a DGX A100 have processors of other nodes, and updated with one thread."""
    machine, gpus = TOPOLOGIES[name]
    for node, processors in zip(gpus, machine.share_out(gpus), strict=True):
        assert processors is not None
        rank_host = Host(tuple((p,) for p in processors), machine.nodes, machine.online)
        threads = choose(None, computing=2, host=rank_host, near=node, alone=False)
        assert threads.count == max(1, min(16, len(processors) - 2))
        assert share(rank_host, node, 1) == min(16, len(processors))


def test_a_rank_whose_node_is_not_allowed_gets_others() -> None:
    """A job scheduler has bound it to the processors of another socket."""
    machine = host({0: range(8), 1: range(8, 16)}, siblings=1, allowed=set(range(8)))
    assert machine.share_out([1, 1]) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert machine.share_out([0, 1]) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert machine.near(1) == list(range(8))
    assert choose(None, computing=2, host=machine, near=1, alone=True).count == 6


@given(st.integers(1, 70), st.integers(1, 64), st.integers(1, 2), st.data())
def test_ranks_share_no_core_while_there_are_enough(
    ranks: int, cores: int, siblings: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, 3), min_size=cores, max_size=cores))
    every = tuple(tuple(range(core * siblings, (core + 1) * siblings)) for core in range(cores))
    nodes = {
        n: tuple(p for core, place in zip(every, places, strict=True) if place == n for p in core)
        for n in range(4)
    }
    near = data.draw(st.lists(st.none() | st.integers(0, 5), min_size=ranks, max_size=ranks))
    given_out = Host(every, nodes, cores * siblings).share_out(near)
    if cores < ranks:
        assert given_out == [None] * ranks
        return
    assert len({len(processors or ()) for processors in given_out}) == 1
    everything = [p // siblings for processors in given_out for p in (processors or ())[::siblings]]
    assert len(everything) == len(set(everything)) > 0


def test_a_machine_is_read_with_the_numbers_of_its_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for node, processors in ((0, "0-1"), (8, "4,6-7"), (255, "")):
        (tmp_path / f"devices/system/node/node{node}").mkdir(parents=True)
        (tmp_path / f"devices/system/node/node{node}/cpulist").write_text(f"{processors}\n")
    for processor, siblings in ((0, "0,4"), (1, "1"), (4, "0,4"), (6, "6")):
        (tmp_path / f"devices/system/cpu/cpu{processor}/topology").mkdir(parents=True)
        file = tmp_path / f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        file.write_text(f"{siblings}\n")
    for device, node in (("0000:07:00.0", 8), ("0001:0f:00.0", -1)):
        (tmp_path / f"bus/pci/devices/{device}").mkdir(parents=True)
        (tmp_path / f"bus/pci/devices/{device}/numa_node").write_text(f"{node}\n")
    monkeypatch.setattr(topology, "_SYSTEM", tmp_path)
    monkeypatch.setattr(topology.os, "sched_getaffinity", lambda _: {0, 1, 4, 6, 7})
    machine = this_host()
    assert machine.cores == ((0, 4), (1,), (6,), (7,))
    assert machine.nodes == {0: (0, 1), 8: (4, 6, 7), 255: ()}
    assert (machine.near(8), machine.node_of(6)) == ([4, 6, 7], 8)
    places = ("00000000:07:00.0", "00000001:0F:00.0", "0000:99:00.0")
    assert [node_of_device(place) for place in places] == [8, None, None]


def test_this_host_has_the_processors_of_this_process() -> None:
    before = os.sched_getaffinity(0)
    assert set(this_host().allowed) == before
    assert all(this_host().node_of(processor) is not None for processor in before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert this_host().cores == ((min(before),),)
    finally:
        os.sched_setaffinity(0, before)
