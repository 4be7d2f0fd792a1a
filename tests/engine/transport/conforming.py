"""What ranks do in the conformance suite of collectives."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from tests.engine.plain import added
from tests.engine.transport.cases import CPU, TAG, make
from zbench.engine.memory.kinds import PinnedHostMemory
from zbench.engine.transport import cross_memory
from zbench.engine.transport.choose import host_collectives, in_shard_groups
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.engine.transport.single import SingleProcessCollectives

KINDS: dict[str, Callable[[dist.ProcessGroup], Any]] = {
    "single": lambda group: SingleProcessCollectives(),
    "gloo": lambda group: GlooCollectives(group, CPU),
    "cross_memory": make,
    "process_group": lambda group: ProcessGroupCollectives(group, CPU),
    "staged": lambda group: HostStagedCollectives(host_collectives(group, CPU), PinnedHostMemory(CPU)),
    "hybrid_gloo": lambda group: in_shard_groups(group, CPU, group.size() // 2, GlooCollectives),
    "hybrid_cross_memory": lambda group: in_shard_groups(group, CPU, group.size() // 2, host_collectives),
    "hybrid_process_group": lambda group: in_shard_groups(
        group, CPU, group.size() // 2, ProcessGroupCollectives
    ),
    "hybrid_staged": lambda group: HostStagedCollectives(
        in_shard_groups(group, CPU, group.size() // 2, host_collectives), PinnedHostMemory(CPU)
    ),
}


def in_order(comm: Any, parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the parts of all ranks: in rank order within shard groups, then over groups."""
    size = comm.shards
    return added([added(parts[k : k + size]) for k in range(0, len(parts), size)])


def sent_by(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    """Return one rank's values: sums of three and more depend on their order."""
    made = torch.Generator().manual_seed(rank)
    return torch.randn(numel, generator=made).to(dtype)


def run(
    group: dist.ProcessGroup, kind: str, operation: str, dtypes: Sequence[torch.dtype]
) -> list[tuple[torch.dtype, int]]:
    """Return where one operation, twice in a row, did not what the protocol says: dtypes and lengths."""
    comm = KINDS[kind](group)
    call = OPERATIONS[operation]
    try:
        with mock.patch.object(cross_memory, "_PIECE", 4096):  # bytes: the longer ones are read in pieces
            done = {
                (dtype, k): [call(comm, dtype, k) for _ in range(2)] for dtype in dtypes for k in (64, 9472)
            }
    finally:
        comm.close()
    return [case for case, right in done.items() if right != [True, True]]


def reduce_scatter(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """The sums of this rank's part in rank order, in float32."""
    world, rank, shards, shard = comm.world_size, comm.rank, comm.shards, comm.shard
    send = sent_by(rank, shards * length, dtype)
    out = torch.full((length,), torch.nan)
    work = comm.reduce_scatter(send, out, TAG)
    work.wait()
    everyone = [sent_by(r, shards * length, dtype).chunk(shards)[shard].float() for r in range(world)]
    expected = in_order(comm, everyone)
    return torch.equal(out, expected) and torch.equal(send, sent_by(rank, shards * length, dtype))


def reduce_in_place(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """The sums may be written over this rank's own part of what it sends, though replicas read that, too."""
    shards, shard = comm.shards, comm.shard
    everyone = [sent_by(r, shards * length, torch.float32) for r in range(comm.world_size)]
    send = everyone[comm.rank].clone()
    out = send.chunk(shards)[shard]
    comm.reduce_scatter(send, out, TAG).wait()
    return torch.equal(out, in_order(comm, [each.chunk(shards)[shard] for each in everyone]))


def all_gather(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """Every shard's part in its place, from the ranks of this rank's shard group."""
    shards, shard = comm.shards, comm.shard
    flat = torch.zeros(shards * length, dtype=dtype)
    flat.chunk(shards)[shard].copy_(sent_by(comm.rank, length, dtype))
    comm.all_gather(flat, TAG).wait()
    return torch.equal(flat, torch.cat([sent_by(r, length, dtype) for r in _shard_group(comm)]))


def gather_shards(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """The values of each shard, stacked."""
    gathered = comm.gather_shards(sent_by(comm.rank, length, dtype), TAG)
    return torch.equal(gathered, torch.stack([sent_by(r, length, dtype) for r in _shard_group(comm)]))


def _shard_group(comm: Any) -> range:
    first = comm.rank - comm.shard
    return range(first, first + comm.shards)


def all_gather_small(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """Every rank's values, stacked."""
    gathered = comm.all_gather_small(sent_by(comm.rank, length, dtype), TAG)
    return torch.equal(gathered, torch.stack([sent_by(r, length, dtype) for r in range(comm.world_size)]))


def add_up(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """The sum of all ranks' integers, whatever their size."""
    words = torch.arange(length, dtype=torch.int64) * (comm.rank + 1) + 2**53 + 1
    expected = sum(torch.arange(length) * (r + 1) + 2**53 + 1 for r in range(comm.world_size))
    return torch.equal(comm.add_up(words, TAG), torch.as_tensor(expected))


def broadcast(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """The source's values on every rank."""
    source = comm.world_size - 1
    tensor = sent_by(comm.rank, length, dtype)
    comm.broadcast(tensor, source, TAG).wait()
    comm.barrier()
    return torch.equal(tensor, sent_by(source, length, dtype))


def scratch(comm: Any, dtype: torch.dtype, length: int) -> bool:
    """What is kept between calls is told, and can be freed."""
    reduce_scatter(comm, dtype, length)
    before = sum(comm.bytes_by_category().values())
    comm.release_scratch()
    return before >= 0 and sum(comm.bytes_by_category().values()) == 0


OPERATIONS: dict[str, Callable[[Any, torch.dtype, int], bool]] = {
    f.__name__: f
    for f in (
        reduce_scatter,
        reduce_in_place,
        all_gather,
        gather_shards,
        all_gather_small,
        add_up,
        broadcast,
        scratch,
    )
}
