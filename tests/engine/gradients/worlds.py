"""A small layout, and what the parts of a reduction are built from."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zbench.engine.parameters.base import ParamInfo
from zbench.engine.partition import GatherGroup, Layout, plan_layout
from zbench.engine.shard_layout import ShardLayout

CPU = torch.device("cpu")
SIZES = (300, 1024, 7)
WORLD = 2


def layout_for(shard_type: type[ShardLayout], world_size: int = WORLD) -> Layout:
    """Return a layout of SIZES in several buckets, with gaps behind the parameters."""
    block = 1024 if shard_type.one_block_per_bucket else 512
    groups = [GatherGroup((2, 1, 0))]
    return plan_layout(SIZES, groups, shards=world_size, block_size=block, bucket_size=1024)


def param_infos() -> list[ParamInfo]:
    """Return parameters of SIZES."""
    return [ParamInfo(k, f"p{k}", nn.Parameter(torch.zeros(n)), 0) for k, n in enumerate(SIZES)]


def gradient(rank: int, micro: int, index: int) -> Tensor:
    """Return small integers, which any order of float32 additions sums alike."""
    made = torch.Generator().manual_seed(100 * rank + 10 * micro + index)
    return torch.randint(-8, 9, (SIZES[index],), generator=made).float()


def kept_of(shard: ShardLayout, values: Sequence[Tensor]) -> Tensor:
    """Return what one rank keeps of whole tensors, in local order."""
    local = torch.zeros(shard.length)
    for s in shard.segments:
        at = s.flat - shard.layout.spans[s.parameter].start
        part = values[s.parameter][at : at + s.length]
        local[s.local : s.local + part.numel()] = part
    return local
