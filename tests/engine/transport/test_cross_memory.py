"""Ranks that read one another's memory: same bits as sockets, and sane when something goes wrong."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.engine.cases import engine_trajectory
from tests.engine.lattice import ROWS, check
from tests.engine.plain import Trajectory
from tests.engine.transport.cases import CPU, reading
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.transport import choose, cross_memory, peers
from zbench.engine.transport.choose import choose_collectives
from zbench.testing.collectives import TAG
from zbench.testing.ranks import RankPool


def test_the_probe_lies_in_the_memory_that_will_be_read() -> None:
    tensor = torch.zeros(16, dtype=torch.uint8)
    memory = mock.Mock(spec=DeviceMemory, zeros=lambda numel, dtype: tensor[:numel])
    probe, _ = peers.publish_probe(memory)
    assert probe.address == tensor.data_ptr()
    assert probe.readable()


def many_in_flight(group: dist.ProcessGroup, length: int, count: int) -> bool:
    """Launch before waiting for anything, with ranks out of step, and overwrite after each wait."""
    comm = reading(group)
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    right = True
    for number in range(3):
        time.sleep(0.01 * rank * number)
        sends = [torch.full((length * world,), float(rank + k + number)) for k in range(count)]
        outs = [torch.empty(length) for _ in sends]
        flats = [torch.full((length * world,), -1.0) for _ in sends]
        works = []
        for k, (send, out, flat) in enumerate(zip(sends, outs, flats, strict=True)):
            flat.chunk(world)[rank].fill_(rank + 10 * k)
            works += [comm.reduce_scatter(send, out, TAG), comm.all_gather(flat, TAG)]
        for k, (send, out, flat) in enumerate(zip(sends, outs, flats, strict=True)):
            works[2 * k].wait()
            works[2 * k + 1].wait()
            send.fill_(-7.0)  # everyone has read it
            right &= bool((out == sum(r + k + number for r in range(world))).all())
            for r, part in enumerate(flat.chunk(world)):
                right &= bool((part == r + 10 * k).all())
            flat.fill_(-7.0)
    comm.close()
    return right


def test_memory_may_be_overwritten_after_the_wait(ranks: RankPool) -> None:
    assert all(ranks.run(3, f"{__name__}:many_in_flight", 50_000, 6))


def trajectory_by_sockets(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Trajectory:
    """Train where no rank may read another's memory."""
    with mock.patch.object(choose, "probe_peers", return_value=None):
        return engine_trajectory(group, *args, **kwargs)


@pytest.mark.parametrize("k", range(len(ROWS)))
def test_training_by_sockets_leaves_the_bits_of_plain_pytorch(ranks: RankPool, k: int) -> None:
    """And so those of training by reading, which the lattice holds to the same in every row."""
    spec = ROWS[k] | {"gradient_clipping": 0.1, "reduce_bucket_size": 1500, "gradient_accumulation_steps": 2}
    model, dtype = [("mlp", "float32"), ("odd-together", "bfloat16")][k % 2]
    check(ranks, model, 3, spec | {"dtype": dtype}, by=f"{__name__}:trajectory_by_sockets")


def chosen(group: dist.ProcessGroup, refused_by: int | None) -> str:
    """Return the class that is chosen when reading is refused to one rank."""
    refusing = mock.patch.object(peers, "read_memory", side_effect=PermissionError)
    if dist.get_rank(group) == refused_by:
        refusing.start()
    comm = choose_collectives(group, DeviceMemory(CPU), DeviceMemory(CPU))
    mock.patch.stopall()
    comm.close()
    return type(comm).__name__


def test_reading_is_chosen_only_if_every_rank_can(ranks: RankPool) -> None:
    assert ranks.run(3, f"{__name__}:chosen", None) == ["CrossMemoryCollectives"] * 3
    for refused in range(3):
        assert ranks.run(3, f"{__name__}:chosen", refused) == ["GlooCollectives"] * 3


def one_fails_to_read(group: dist.ProcessGroup, failing: int) -> tuple[str, float]:
    """Return what the waiter of each rank gets when one rank cannot read, and what the next call gives."""
    comm = reading(group)
    rank = dist.get_rank(group)
    send = torch.ones(3 << 15)

    def refuse(*_: object) -> None:
        raise OSError("refused in the middle")

    out = torch.empty(send.numel() // dist.get_world_size(group))
    read: Callable[..., None] = refuse if rank == failing else peers.read_memory
    with mock.patch.object(cross_memory, "read_memory", read):
        try:
            comm.reduce_scatter(send, out, TAG).wait()
            heard = "nothing"
        except (OSError, RuntimeError) as error:
            heard = str(error)
    comm.reduce_scatter(send, out, TAG).wait()
    comm.close()
    return heard, float(out[0])


def test_a_rank_that_fails_to_read_tells_the_others(ranks: RankPool) -> None:
    heard, values = zip(*ranks.run(3, f"{__name__}:one_fails_to_read", 2), strict=True)
    assert heard == (*["rank 2 could not read the memory of another rank"] * 2, "refused in the middle")
    assert values == (3.0,) * 3


def interrupted(group: dist.ProcessGroup) -> tuple[str, bool]:
    """Interrupt a wait; return what it raised, and whether the work was done by then."""
    comm = reading(group)
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


def test_an_interrupt_is_raised_after_the_last_use_of_memory(ranks: RankPool) -> None:
    assert ranks.run(2, f"{__name__}:interrupted") == [("interrupt", True), ("nothing", True)]
