"""What ranks do in the tests of who adds; every case returns plain values."""

from functools import partial

import torch
import torch.distributed as dist

from tests.engine.steps.agreeing import heard
from tests.engine.transport.cases import CPU, TAG
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.protocols import Collectives
from zbench.engine.transport.choose import Reduction, choose_collectives, in_shard_groups
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.testing.collectives import sent_by


def by_the_backend(group: dist.ProcessGroup, size: int) -> Collectives:
    """Return collectives of shard groups of `size` ranks in which the backend adds."""
    return in_shard_groups(group, CPU, size, partial(ProcessGroupCollectives, in_rank_order=False))


def far_from_the_sum(group: dist.ProcessGroup, size: int, dtype: torch.dtype) -> list[float]:
    """Return the largest error of two reductions in flight at once, in units of the dtype's rounding."""
    comm = by_the_backend(group, size)
    length = 960
    sends = [sent_by(comm.rank + 10 * k, comm.shards * length, dtype) for k in range(2)]
    outs = [torch.full((length,), torch.nan) for _ in sends]
    works = [comm.reduce_scatter(send, out, TAG) for send, out in zip(sends, outs, strict=True)]
    for work in works:
        work.wait()
    errors = []
    for k, out in enumerate(outs):
        everyone = [sent_by(r + 10 * k, comm.shards * length, dtype).double() for r in range(comm.world_size)]
        expected = sum(everyone, torch.zeros(())).chunk(comm.shards)[comm.shard]
        error = (out.double() - expected).abs().max() / (expected.abs().max() * torch.finfo(dtype).eps)
        errors.append(float(error))
    return errors


def bytes_between_groups(group: dist.ProcessGroup, dtype: torch.dtype) -> list[tuple[str, int, torch.dtype]]:
    """Return what is called of the backend in one reduction of 2 groups: name, elements and dtype."""
    comm = by_the_backend(group, dist.get_world_size(group) // 2)
    calls: list[tuple[str, int, torch.dtype]] = []
    real = {name: getattr(dist, name) for name in ("reduce_scatter_tensor", "all_reduce")}

    def seen(name: str, first: torch.Tensor, *args: object, **keys: object) -> object:
        calls.append((name, first.numel(), first.dtype))
        return real[name](first, *args, **keys)

    try:
        for name in real:
            setattr(dist, name, partial(seen, name))
        comm.reduce_scatter(torch.ones(comm.shards * 64, dtype=dtype), torch.empty(64), TAG).wait()
    finally:
        for name, function in real.items():
            setattr(dist, name, function)
    return calls


def refused(group: dist.ProcessGroup, reduction: Reduction) -> str:
    """Return what is said of a reduction over gloo."""
    here = DeviceMemory(CPU)
    return heard(lambda: choose_collectives(group, here, here, None, reduction).close())
