"""The end of another rank's process, noticed by the rank before it; sockets that no other user reaches."""

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import torch.distributed as dist

from tests.worker.engines import listening
from zbench.engine.transport.neighbours import Neighbour
from zbench.engine.transport.peers import PeerListener


def test_a_ring_on_one_host_listens_at_the_loopback_interface_alone() -> None:
    before = listening(psutil.Process())
    ring = Neighbour(0, 1, dist.HashStore())
    assert sorted([*before, "127.0.0.1"]) == listening(psutil.Process())
    ring.close()


def test_no_other_user_can_connect_to_a_rank_and_nothing_is_left_behind() -> None:
    listener = PeerListener(0, 2, 20.0)
    folder = Path(listener.name).parent
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IRWXU
    listener.close()
    assert not folder.exists()


def test_the_rank_before_one_that_ends_notices_it_once() -> None:
    world = 3
    first = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    others = [dist.TCPStore("localhost", first.port, is_master=False) for _ in range(world - 1)]
    stores = [dist.PrefixStore("of/a/group", store) for store in (first, *others)]
    with ThreadPoolExecutor(world) as threads:
        ring = list(threads.map(Neighbour, range(world), [world] * world, stores))
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
