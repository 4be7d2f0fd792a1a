"""What ranks do in the tests of composed collectives; every case returns plain values."""

from datetime import timedelta

import torch
import torch.distributed as dist

from tests.engine.steps.agreeing import heard
from zbench.engine.memory.kinds import DeviceMemory, PinnedHostMemory
from zbench.engine.protocols import Tag
from zbench.engine.transport.choose import choose_collectives
from zbench.engine.transport.process_group import ProcessGroupCollectives, subgroup

CPU = torch.device("cpu")
TAG = Tag("a test")


def in_another_order(group: dist.ProcessGroup) -> bool:
    """Gather before the reduction on odd ranks and after it on the others; return whether both are right."""
    gathers = dist.new_group(dist.get_process_group_ranks(group))
    assert isinstance(gathers, dist.ProcessGroup)
    comm = ProcessGroupCollectives(group, CPU, gathers)
    rank, world = comm.rank, comm.world_size
    out = torch.empty(64)
    flat = torch.full((world * 64,), float(rank))
    send = torch.full((world * 64,), float(rank))
    calls = [lambda: comm.reduce_scatter(send, out, TAG), lambda: comm.all_gather(flat, TAG)]
    works = [call() for call in (calls[::-1] if rank % 2 else calls)]
    for work in works:
        work.wait()
    comm.close()
    gathered = torch.arange(world).repeat_interleave(64).float()
    return torch.equal(flat, gathered) and bool((out == sum(range(world))).all())


def chosen_for_a_device(group: dist.ProcessGroup) -> str:
    """Return the kind of collectives that tensors of a GPU get over gloo."""
    comm = choose_collectives(group, DeviceMemory(torch.device("cuda")), PinnedHostMemory(CPU))
    comm.close()
    return type(comm).__name__


def subgroup_where_ranks_belong_to_unlike_many(group: dist.ProcessGroup) -> str:
    """Return what is said where some ranks of a group belong to more groups than the others."""
    dist.new_group([0, 1])
    three = dist.new_group([0, 1, 2])
    if dist.get_rank(group) > 2:
        return "not in it"
    assert isinstance(three, dist.ProcessGroup)
    return heard(lambda: subgroup(three, 1, CPU))


def timeouts_of_subgroups(group: dist.ProcessGroup) -> list[tuple[float, torch.device | None]]:
    """Return the timeouts of shard groups of a group with one of two hours, for each kind of device, and the
    device that each is bound to.
    """
    ranks = dist.get_process_group_ranks(group)
    slow = dist.new_group(ranks, timeout=timedelta(hours=2))
    assert isinstance(slow, dist.ProcessGroup)
    timeouts = []
    for device in (CPU, torch.device("cuda", 0)):
        half = subgroup(slow, len(ranks) // 2, device)
        timeouts.append((half._get_backend(device).options._timeout.total_seconds(), half.bound_device_id))
    return timeouts
