"""What takes gradients from autograd to where their sums land, by way of which buffers."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from zbench.engine.assembly import settings
from zbench.engine.compiled.compile import compile_model
from zbench.engine.gradients.bucket_buffers import (
    CastSends,
    InPlaceSends,
    LendingSends,
    PooledSends,
    ResidentSends,
    Sends,
)
from zbench.engine.gradients.config import Route
from zbench.engine.gradients.reduced_buffers import Landing, StepLanding, WholeLanding
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.gradients.sinks import Gradients, ReplicatedGradients, ShardedGradients
from zbench.engine.parameters.replicated import Trainable
from zbench.spec.engine import EngineSpec


def gradients_of(
    spec: EngineSpec, model: nn.Module, trainables: Sequence[Trainable], route: Route
) -> tuple[Landing, Gradients]:
    """Return where the sums land, and what brings them there."""
    if spec.compile != "off":
        return compile_model(model, trainables, route, spec.compile)
    landing = _landing(spec, route)
    watches = spec.offload_schedule == "speculative"
    reducer = BucketReducer(route.collectives, landing, in_flight=route.in_flight, watches=watches)
    at_boundary = route.collectives.world_size == 1 or settings.reduces_at_boundary(spec)
    pooled = PooledSends(route.shard.layout, route.wire.sent_sections, route.device)
    once = _once(route, landing, pooled, at_boundary=at_boundary)
    if not at_boundary:
        return landing, ShardedGradients(reducer, trainables, once)
    several = _several(route, landing, pooled)
    return landing, ReplicatedGradients(reducer, trainables, once=once, several=several)


def _landing(spec: EngineSpec, route: Route) -> Landing:
    place = route.shard, route.placement, route.device, route.wire.kept
    if route.shard.whole:
        return WholeLanding(*place, route.collectives)
    alone, offloaded = route.collectives.world_size == 1, spec.offload_optimizer != "none"
    return Landing(*place) if spec.zero_stage < 3 or alone or offloaded else StepLanding(*place)


def _once(route: Route, landing: Landing, pooled: PooledSends, *, at_boundary: bool) -> Sends:
    """Return the send buffers of a step with one backward.

    The landing is its own send buffer where nothing is sent, or all of it lands here as it was sent.
    """
    layout, sent = route.shard.layout, route.wire.sent_sections
    here, alone = _lands_here(route, landing), route.collectives.world_size == 1
    as_sent = at_boundary and route.shard.whole and all(dtype == torch.float32 for dtype in sent)
    inner: Sends = InPlaceSends(layout, landing.sums) if here and (alone or as_sent) else pooled
    return inner if alone else LendingSends(layout, inner, sent)


def _several(route: Route, landing: Landing, pooled: PooledSends) -> Sends:
    """Return the buffers in which several backwards are added up before they are sent.

    The landing serves where all of them land here, and sums are sent as they are kept.
    """
    layout, wire = route.shard.layout, route.wire
    exact = wire.kept == torch.float32 and wire.sent in (None, torch.float32)
    everything = route.collectives.world_size == 1 or route.shard.whole
    if exact and everything and _lands_here(route, landing):
        return InPlaceSends(layout, landing.sums)
    resident = partial(torch.zeros, layout.length, dtype=wire.kept, device=route.device)
    if wire.sent in (None, wire.kept):
        return ResidentSends(layout, resident)
    return CastSends(layout, resident, pooled)


def _lands_here(route: Route, landing: Landing) -> bool:
    """Whether the landing is memory that backward can write to."""
    return all(flat.home.device.type == route.device.type for flat in landing.sums.flats)
