"""Builds the optimizer: master weights, moments and the Adam backend."""

from collections.abc import Sequence

import torch

from zbench.engine.adam import AdamBackend, MixedAdam, NativeAdam, cuda_adam, cuda_unavailable_reason
from zbench.engine.assembly.settings import DTYPES
from zbench.engine.gradients.storage import RankSums
from zbench.engine.memory.buffers import FlatBuffer, MemoryLayout
from zbench.engine.memory.kinds import Memory
from zbench.engine.optimizer.masters import MasterWeights, PartitionedMasters, SeparateMasters, StagedMasters
from zbench.engine.optimizer.shard_optimizer import Moments, ParamGroup, ShardOptimizer
from zbench.engine.optimizer.threads import threads_after_backward
from zbench.engine.parameters.base import Parameters
from zbench.engine.partition import Extent
from zbench.engine.shard_layout import ShardLayout
from zbench.spec.engine import SIZES, EngineSpec


def make_adam(device: torch.device, offload_ratio: float, threads: int | None) -> AdamBackend:
    """Return the backend that updates optimizer state of which `offload_ratio` is on the CPU, with so many
    `threads` there (None: `threads_after_backward`).
    """
    native = NativeAdam(threads_after_backward(threads, device))
    if device.type != "cuda" or offload_ratio == 1.0:
        return native
    return cuda_adam() if offload_ratio == 0.0 else MixedAdam({"cuda": cuda_adam(), "cpu": native})


def make_optimizer(
    spec: EngineSpec,
    memory_layout: MemoryLayout,
    parameters: Parameters,
    sums: RankSums,
    groups: Sequence[ParamGroup],
    device_type: str,
) -> ShardOptimizer:
    """Return the optimizer of what this rank keeps, its state in the memories of `memory_layout`.

    device_type: of the device whose default sizes are taken.
    """
    moments = Moments(
        memory_layout,
        DTYPES[spec.optimizer.moments_dtype],
        amsgrad=any(group["amsgrad"] for group in groups),
        stochastic=spec.optimizer.moments_rounding == "stochastic",
    )
    return ShardOptimizer(
        parameters.shard,
        make_masters(memory_layout, parameters),
        moments,
        sums.sums,
        groups,
        [t.group for t in parameters.param_infos],
        sub_group_size=spec.sub_group_size or _sub_group_size(memory_layout, parameters.shard, device_type),
    )


def _sub_group_size(memory_layout: MemoryLayout, shard: ShardLayout, device_type: str) -> int:
    """Return the elements of one Adam call where none are given. A device that keeps all updates all at once:
    no gather begins behind the first ones there, and the kernels take no memory (torch's do).
    """
    there = device_type == "cuda" and not any(memory.prefix for memory, _ in memory_layout.parts)
    at_once = there and shard.keeps_all and cuda_unavailable_reason() is None
    return shard.length if at_once else SIZES["sub_group_size"]


def make_masters(memory_layout: MemoryLayout, parameters: Parameters) -> list[MasterWeights]:
    """Return the master weights of each dtype group of `parameters`."""
    shard = parameters.shard
    masters = list[MasterWeights]()
    for dtype_group, dtype in enumerate(buffer.dtype for buffer in parameters.buffers):
        part = memory_layout.within(shard.local(shard.layout.dtype_group_extent(dtype_group)))
        kinds = [(extents, _masters_in(memory, extents, parameters, dtype)) for memory, extents in part.parts]
        masters.append(kinds[0][1] if len(kinds) == 1 else PartitionedMasters(kinds))
    return masters


def _masters_in(
    memory: Memory, extents: Sequence[Extent], parameters: Parameters, dtype: torch.dtype
) -> MasterWeights:
    if dtype == torch.float32 and memory == parameters.memory:
        return MasterWeights(parameters)
    flat = FlatBuffer(memory, extents, torch.float32)
    if memory.device.type == parameters.memory.device.type:
        return SeparateMasters(parameters, flat)
    return StagedMasters(parameters, flat, FlatBuffer(memory, extents, dtype))
