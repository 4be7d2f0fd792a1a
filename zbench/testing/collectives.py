"""The suite of collectives: each operation of `Collectives`, called on ranks, against its definition."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Tag
from zbench.testing.ranks import RankPool

TAG = Tag("a test")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def in_order(comm: Any, parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the parts of all ranks: in rank order within shard groups, then over groups."""
    size = comm.shards
    return _added([_added(parts[k : k + size]) for k in range(0, len(parts), size)])


def _added(values: Sequence[Tensor]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def sent_by(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    """Return one rank's values: sums of three and more depend on their order."""
    made = torch.Generator().manual_seed(rank)
    return torch.randn(numel, generator=made).to(dtype)


def run(
    group: dist.ProcessGroup, make: str, operation: str, dtypes: Sequence[torch.dtype]
) -> list[tuple[torch.dtype, int]]:
    """Return the dtypes and lengths with which one operation, twice in a row, broke the protocol.

    make: `module:function` with the collectives of a group.
    """
    module, _, name = make.partition(":")
    comm = getattr(importlib.import_module(module), name)(group)
    call = OPERATIONS[operation]
    try:
        done = {(dtype, k): [call(comm, dtype, k) for _ in range(2)] for dtype in dtypes for k in (64, 9472)}
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
    total: Tensor = comm.add_up(words, TAG)
    return torch.equal(total, torch.as_tensor(expected))


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
    return before >= 0 and not any(comm.bytes_by_category().values())


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


class CollectivesSuite:
    """Inherited by the test of each implementation.

    make: `module:function`; function(group) returns the implementation of `Collectives` on a rank of a gloo
    group. worlds: numbers of ranks. dtypes: of values that are sent.
    """

    make: ClassVar[str]
    worlds: ClassVar[tuple[int, ...]] = (2, 3)
    dtypes: ClassVar[tuple[torch.dtype, ...]] = DTYPES

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_it_does_what_the_protocol_says(self, ranks: RankPool, operation: str) -> None:
        for world in self.worlds:
            case = (self.make, operation, self.dtypes)
            assert ranks.run(world, "zbench.testing.collectives:run", *case) == [[]] * world
