"""What ranks do in the tests of transport; every case returns plain values."""

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.engine.cases import engine_trajectory
from tests.engine.plain import Trajectory
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.transport import choose, cross_memory, peers
from zbench.engine.transport.choose import choose_collectives
from zbench.engine.transport.peers import probe_peers
from zbench.measure.shim import SHIM, WHY_NOT
from zbench.testing.collectives import TAG

CPU = torch.device("cpu")


def make(group: dist.ProcessGroup) -> cross_memory.CrossMemoryCollectives:
    """Return collectives that read; AssertionError where ranks may not."""
    peers = probe_peers(group)
    assert peers is not None
    return cross_memory.CrossMemoryCollectives(group, CPU, peers)


def many_in_flight(group: dist.ProcessGroup, length: int, count: int) -> bool:
    """Launch before waiting for anything, with ranks out of step, and overwrite after each wait."""
    comm = make(group)
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    right = True
    for number in range(3):
        time.sleep(0.01 * rank * number)
        bucket_buffers = [torch.full((length * world,), float(rank + k + number)) for k in range(count)]
        outs = [torch.empty(length) for _ in bucket_buffers]
        flats = [torch.full((length * world,), -1.0) for _ in bucket_buffers]
        works = []
        for k, (send, out, flat) in enumerate(zip(bucket_buffers, outs, flats, strict=True)):
            flat.chunk(world)[rank].fill_(rank + 10 * k)
            works += [comm.reduce_scatter(send, out, TAG), comm.all_gather(flat, TAG)]
        for k, (send, out, flat) in enumerate(zip(bucket_buffers, outs, flats, strict=True)):
            works[2 * k].wait()
            works[2 * k + 1].wait()
            send.fill_(-7.0)  # everyone has read it
            right &= bool((out == sum(r + k + number for r in range(world))).all())
            for r, part in enumerate(flat.chunk(world)):
                right &= bool((part == r + 10 * k).all())
            flat.fill_(-7.0)
    comm.close()
    return right


def chosen(group: dist.ProcessGroup, refused_by: int | None) -> str:
    """Return the class that is chosen when reading is refused to one rank."""

    def refuse(*_: object) -> None:
        raise PermissionError

    if dist.get_rank(group) == refused_by:
        with mock.patch.object(peers, "read_memory", refuse):
            comm = choose_collectives(group, DeviceMemory(CPU), DeviceMemory(CPU))
    else:
        comm = choose_collectives(group, DeviceMemory(CPU), DeviceMemory(CPU))
    comm.close()
    return type(comm).__name__


def threads_left(group: dist.ProcessGroup, *, closed: bool) -> list[str]:
    """Return the names of threads that live on after collectives were used and let go."""
    before = set(threading.enumerate())  # of engines that another test dropped
    comm = make(group)
    flat = torch.zeros(1 << 18)
    comm.all_gather(flat, TAG).wait()
    if closed:
        comm.close()
    del comm
    deadline = time.monotonic() + 120
    while (rest := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [thread.name for thread in rest]


def one_fails_to_read(group: dist.ProcessGroup, failing: int) -> tuple[str, float]:
    """Return what the waiter of each rank gets when one rank cannot read, and what the next call gives."""
    comm = make(group)
    rank = dist.get_rank(group)
    send = torch.ones(3 << 15)

    def refuse(*_: object) -> None:
        raise OSError("refused in the middle")

    out = torch.empty(send.numel() // dist.get_world_size(group))
    reading: Callable[..., None] = refuse if rank == failing else peers.read_memory
    with mock.patch.object(cross_memory, "read_memory", reading):
        try:
            comm.reduce_scatter(send, out, TAG).wait()
            heard = "nothing"
        except (OSError, RuntimeError) as error:
            heard = str(error)
    comm.reduce_scatter(send, out, TAG).wait()
    comm.close()
    return heard, float(out[0])


def interrupted(group: dist.ProcessGroup) -> tuple[str, bool]:
    """Interrupt a wait; return what it raised, and whether the work was done by then."""
    comm = make(group)
    rank = dist.get_rank(group)
    send = torch.ones(3 << 15)
    out = torch.zeros((3 << 15) // dist.get_world_size(group))
    if rank:
        dist.recv(torch.empty(1), group_src=0, group=group)  # rank 0 was interrupted while it waited

    def interrupt() -> None:
        os.kill(os.getpid(), 2)
        for peer in range(1, dist.get_world_size(group)):
            dist.send(torch.empty(1), group_dst=peer, group=group)

    work = comm.reduce_scatter(send, out, TAG)
    try:
        if rank == 0:
            threading.Timer(0.1, interrupt).start()
        work.wait()
        heard = "nothing"
    except KeyboardInterrupt:
        heard = "interrupt"
    done = bool((out == dist.get_world_size(group)).all())
    comm.close()
    return heard, done


def extra_bytes(group: dist.ProcessGroup, length: int, *, in_place: bool) -> tuple[int, int]:
    """Return the most bytes held at once during a reduction beyond what it was given, and what it leaves."""
    comm = make(group)
    send = torch.ones(length * comm.world_size)
    out = send.chunk(comm.world_size)[comm.rank] if in_place else torch.empty(length)
    assert SHIM is not None, WHY_NOT
    gc.collect()  # what other cases left
    before = SHIM.zbench_memory_live_bytes()
    SHIM.zbench_memory_reset_peak()
    comm.reduce_scatter(send, out, TAG).wait()
    extra, rest = (at() - before for at in (SHIM.zbench_memory_peak_bytes, SHIM.zbench_memory_live_bytes))
    comm.close()
    return extra, rest


def trajectory_by_sockets(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Trajectory:
    """Train where no rank may read another's memory."""
    with mock.patch.object(choose, "probe_peers", return_value=None):
        return engine_trajectory(group, *args, **kwargs)
