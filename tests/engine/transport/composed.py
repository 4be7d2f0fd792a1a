"""What ranks do in the tests of composed collectives; every case returns plain values."""

import torch
import torch.distributed as dist

from zbench.engine.memory.kinds import DeviceMemory, PinnedHostMemory
from zbench.engine.protocols import Tag
from zbench.engine.transport.choose import choose_collectives, host_collectives
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.engine.transport.process_group import ProcessGroupCollectives, subgroup
from zbench.errors import UsageError

CPU = torch.device("cpu")
TAG = Tag("a test")


def _sent(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank)).to(dtype)


def differing(group: dist.ProcessGroup, kind: str) -> list[str]:
    """Reduce and gather several at a time, twice; return what differs from the sums in rank order."""
    comm = (
        ProcessGroupCollectives(group, CPU)
        if kind == "process group"
        else HostStagedCollectives(host_collectives(group), PinnedHostMemory(CPU))
    )
    rank, world, found = comm.rank, comm.world_size, []
    for length in (64, 5 * 64):
        for dtype in (torch.float32, torch.bfloat16):
            everyone = [_sent(r, world * length, dtype) for r in range(world)]
            expected = everyone[0].chunk(world)[rank].float()
            for other in everyone[1:]:
                expected = expected + other.chunk(world)[rank].float()
            out, flat = torch.empty(length), torch.zeros(world * length, dtype=dtype)
            flat.chunk(world)[rank].copy_(everyone[rank].chunk(world)[rank])
            works = [comm.reduce_scatter(everyone[rank], out, TAG), comm.all_gather(flat, TAG)]
            for work in works:
                work.wait()
            whole = torch.cat([everyone[r].chunk(world)[r] for r in range(world)])
            found += [f"sum of {length} {dtype}"] * (not torch.equal(out, expected))
            found += [f"gather of {length} {dtype}"] * (not torch.equal(flat, whole))
    small = comm.all_gather_small(torch.tensor([float(rank)]), TAG)
    found += ["small"] * (small.flatten().tolist() != [float(r) for r in range(world)])
    value = torch.tensor([float(rank)])
    comm.broadcast(value, world - 1, TAG).wait()
    found += ["broadcast"] * (value.item() != world - 1)
    comm.close()
    return found


def in_another_order(group: dist.ProcessGroup) -> bool:
    """Gather before the reduction on odd ranks and after it on the others; return whether both are right."""
    gathers = dist.new_group(dist.get_process_group_ranks(group))
    assert isinstance(gathers, dist.ProcessGroup)
    comm = ProcessGroupCollectives(group, CPU, gathers)
    rank, world = comm.rank, comm.world_size
    out, flat = torch.empty(64), torch.full((world * 64,), float(rank))
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
    try:
        subgroup(three, 1)
    except UsageError as error:
        return str(error)
    return "made"
