"""What takes gradients from autograd to where their sums land, by way of which buffers."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from zbench.engine.assembly import settings
from zbench.engine.compiled.compile import compile_model
from zbench.engine.gradients.bucket_buffers import (
    BucketBuffers,
    CastBucketBuffers,
    InPlaceBucketBuffers,
    PersistentBucketBuffers,
    PooledBucketBuffers,
    ZeroCopyBucketBuffers,
)
from zbench.engine.gradients.config import ReductionConfig
from zbench.engine.gradients.reduced_buffers import (
    ReducedGradientBuffer,
    TransientReducedGradientBuffer,
    WholeReducedGradientBuffer,
)
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.gradients.sinks import Gradients, ReplicatedGradients, ShardedGradients
from zbench.engine.parameters.replicated import ParamInfo
from zbench.spec.engine import EngineSpec


def gradients_of(
    spec: EngineSpec, model: nn.Module, param_infos: Sequence[ParamInfo], config: ReductionConfig
) -> tuple[ReducedGradientBuffer, Gradients]:
    """Return where the sums land, and what brings them there."""
    if spec.compile != "off":
        return compile_model(model, param_infos, config, spec.compile)
    reduced_gradients = _reduced_gradients(spec, config)
    polls = spec.offload_schedule == "speculative"
    reducer = BucketReducer(config.collectives, reduced_gradients, in_flight=config.in_flight, polls=polls)
    at_boundary = config.collectives.world_size == 1 or settings.reduces_at_boundary(spec)
    pooled = PooledBucketBuffers(config.shard.layout, config.dtype_policy.communication_dtypes, config.device)
    once = _once(config, reduced_gradients, pooled, at_boundary=at_boundary)
    if not at_boundary:
        return reduced_gradients, ShardedGradients(reducer, param_infos, once)
    several = _several(config, reduced_gradients, pooled)
    return reduced_gradients, ReplicatedGradients(reducer, param_infos, once=once, several=several)


def _reduced_gradients(spec: EngineSpec, config: ReductionConfig) -> ReducedGradientBuffer:
    place = config.shard, config.memory_layout, config.device, config.dtype_policy.accumulation
    if config.shard.whole:
        return WholeReducedGradientBuffer(*place, config.collectives)
    alone, offloaded = config.collectives.world_size == 1, spec.offload_optimizer != "none"
    return (
        ReducedGradientBuffer(*place)
        if spec.zero_stage < 3 or alone or offloaded
        else TransientReducedGradientBuffer(*place)
    )


def _once(
    config: ReductionConfig,
    reduced_gradients: ReducedGradientBuffer,
    pooled: PooledBucketBuffers,
    *,
    at_boundary: bool,
) -> BucketBuffers:
    """Return the send buffers of a step with one backward.

    The reduced-gradient buffer itself serves where nothing is sent, or where this rank keeps every sum in the
    dtype of communication.
    """
    layout, sent = config.shard.layout, config.dtype_policy.communication_dtypes
    here, alone = _lands_here(config, reduced_gradients), config.collectives.world_size == 1
    as_sent = at_boundary and config.shard.whole and all(dtype == torch.float32 for dtype in sent)
    inner: BucketBuffers = (
        InPlaceBucketBuffers(layout, reduced_gradients.sums) if here and (alone or as_sent) else pooled
    )
    return inner if alone else ZeroCopyBucketBuffers(layout, inner, sent)


def _several(
    config: ReductionConfig, reduced_gradients: ReducedGradientBuffer, pooled: PooledBucketBuffers
) -> BucketBuffers:
    """Return the buffers in which several backwards are added up before they are sent.

    The reduced-gradient buffer serves where all of them land here, and sums are sent as they are kept.
    """
    layout, dtype_policy = config.shard.layout, config.dtype_policy
    exact = dtype_policy.accumulation == torch.float32 and dtype_policy.communication in (None, torch.float32)
    everything = config.collectives.world_size == 1 or config.shard.whole
    if exact and everything and _lands_here(config, reduced_gradients):
        return InPlaceBucketBuffers(layout, reduced_gradients.sums)
    resident = partial(torch.zeros, layout.length, dtype=dtype_policy.accumulation, device=config.device)
    if dtype_policy.communication in (None, dtype_policy.accumulation):
        return PersistentBucketBuffers(layout, resident)
    return CastBucketBuffers(layout, resident, pooled)


def _lands_here(config: ReductionConfig, reduced_gradients: ReducedGradientBuffer) -> bool:
    """Whether the reduced-gradient buffer is memory that backward can write to."""
    return all(flat.memory.device.type == config.device.type for flat in reduced_gradients.sums.flats)
