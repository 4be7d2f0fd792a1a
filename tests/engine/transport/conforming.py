"""What ranks do in the conformance suite of collectives."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.engine.transport.cases import CPU, TAG, make
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.engine.transport.single import SingleProcessCollectives

KINDS: dict[str, Callable[[dist.ProcessGroup], Any]] = {
    "single": lambda group: SingleProcessCollectives(),
    "gloo": lambda group: GlooCollectives(group, CPU),
    "cross_memory": make,
    "process_group": lambda group: ProcessGroupCollectives(group, CPU),
}


def sent_by(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    """Return one rank's values: sums of three and more depend on their order."""
    made = torch.Generator().manual_seed(rank)
    return torch.randn(numel, generator=made).to(dtype)


def run(group: dist.ProcessGroup, kind: str, operation: str, dtype: torch.dtype, length: int) -> bool:
    """Return whether one operation, twice in a row, did what the protocol says."""
    comm = KINDS[kind](group)
    try:
        return all(OPERATIONS[operation](comm, dtype, length) for _ in range(2))
    finally:
        comm.close()


def reduce_scatter(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """The sums of this rank's part in rank order, in float32."""
    world, rank = comm.world_size, comm.rank
    send, out = sent_by(rank, world * length, dtype), torch.full((length,), torch.nan)
    work = comm.reduce_scatter(send, out, TAG)
    work.wait()
    expected = sent_by(0, world * length, dtype).chunk(world)[rank].float()
    for r in range(1, world):
        expected = expected + sent_by(r, world * length, dtype).chunk(world)[rank].float()
    return torch.equal(out, expected) and torch.equal(send, sent_by(rank, world * length, dtype))


def all_gather(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """Every rank's part in its place."""
    world, rank = comm.world_size, comm.rank
    flat = torch.zeros(world * length, dtype=dtype)
    flat.chunk(world)[rank].copy_(sent_by(rank, length, dtype))
    comm.all_gather(flat, TAG).wait()
    return torch.equal(flat, torch.cat([sent_by(r, length, dtype) for r in range(world)]))


def all_gather_small(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """Every rank's values, stacked."""
    found = comm.all_gather_small(sent_by(comm.rank, length, dtype), TAG)
    return torch.equal(found, torch.stack([sent_by(r, length, dtype) for r in range(comm.world_size)]))


def broadcast(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """The source's values on every rank."""
    source = comm.world_size - 1
    tensor = sent_by(comm.rank, length, dtype)
    comm.broadcast(tensor, source).wait()
    comm.barrier()
    return torch.equal(tensor, sent_by(source, length, dtype))


def scratch(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """What is kept between calls is told, and can be freed."""
    reduce_scatter(comm, dtype, length)
    before = sum(comm.bytes_by_category().values())
    comm.release_scratch()
    return before >= 0 and sum(comm.bytes_by_category().values()) == 0


OPERATIONS: dict[str, Callable[[Any, torch.dtype, int], bool]] = {
    f.__name__: f for f in (reduce_scatter, all_gather, all_gather_small, broadcast, scratch)
}
