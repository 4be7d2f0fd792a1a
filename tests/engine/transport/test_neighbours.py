"""The end of another rank's process, noticed by the rank before it."""

import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch.distributed as dist

from tests.worker.engines import listening
from zbench.engine.transport.neighbours import Neighbour


def stores(name: str, world: int) -> list[dist.Store]:
    """Return each rank's."""
    if name == "hash":
        return [dist.HashStore()] * world
    first = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    others = [dist.TCPStore("localhost", first.port, is_master=False) for _ in range(world - 1)]
    return [dist.PrefixStore("of/a/group", one) for one in (first, *others)]


def test_a_ring_on_one_host_listens_at_the_loopback_interface_alone() -> None:
    before = listening(psutil.Process())
    ring = Neighbour(0, 1, dist.HashStore())
    assert sorted([*before, "127.0.0.1"]) == listening(psutil.Process())
    ring.close()


@pytest.mark.parametrize("name", ["hash", "tcp"])
@pytest.mark.parametrize("world", [2, 3])
def test_the_rank_before_one_that_ends_notices_it_once(name: str, world: int) -> None:
    of_ranks = stores(name, world)
    with ThreadPoolExecutor(world) as threads:
        ring = list(threads.map(Neighbour, range(world), [world] * world, of_ranks))
    assert [one.gone() for one in ring] == [None] * world
    last = world - 1
    ring[last].close()
    deadline = time.monotonic() + 60
    while (gone := ring[last - 1].gone()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone == last
    assert [one.gone() for one in ring] == [None] * world
    for one in ring:
        one.close()
