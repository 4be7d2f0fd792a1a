"""EngineSpec -> Engine: the only place that names a stage, and where every choice becomes an object."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine.adam import NORM_CHUNK, AdamBackend, CudaAdam, MixedAdam, NativeAdam
from zbench.engine.assembly import settings
from zbench.engine.assembly.discovery import (
    Regions,
    collect,
    collect_frozen,
    make_groups,
    prepare,
    replicated_regions,
    unit_regions,
)
from zbench.engine.assembly.reduction import gradients_of
from zbench.engine.assembly.settings import DTYPES
from zbench.engine.checkpoint.state import EngineState, set_masters
from zbench.engine.engine import Core, Engine, Policies
from zbench.engine.gradients.config import Route, Wire
from zbench.engine.gradients.norm import ChunkSums, Summarizer
from zbench.engine.gradients.reduced_buffers import Landing
from zbench.engine.gradients.sinks import Gradients
from zbench.engine.memory.buffers import Placement, placed
from zbench.engine.memory.kinds import Device, Home, PinnedHost
from zbench.engine.optimizer.masters import masters_of
from zbench.engine.optimizer.offload_split import hold_back
from zbench.engine.optimizer.schedule import AfterBackward, Schedule
from zbench.engine.optimizer.shard_optimizer import Moments, ParamGroup, ShardOptimizer
from zbench.engine.parameters.deferred import forget_parts, whole_values
from zbench.engine.parameters.frozen import Frozen, FrozenInPlace, FrozenShards
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.hooks import GatherHooks, GradientHooks
from zbench.engine.parameters.replicated import Parameters, ReplicatedParameters, Trainable, write_segments
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.partition import Layout, Region, Shard, plan_layout
from zbench.engine.protocols import Collectives
from zbench.engine.speculative import Knowledge, Settings, Speculative, speculate
from zbench.engine.transport.choose import Transport, choose_collectives
from zbench.spec.engine import EngineSpec

BUCKETS_IN_FLIGHT = 2  # one less at stage 0, on top of whose whole gradient they come
SOLO = 1 << 17  # elements from which a copy costs the CPU more than a collective of its own


@dataclass(frozen=True, slots=True)
class Instruments:
    """Wrappers around what the engine calls, so that it can be measured, or simulated, from outside."""

    wrap_collectives: Callable[[Collectives], Collectives] = lambda inner: inner
    wrap_adam: Callable[[AdamBackend], AdamBackend] = lambda inner: inner


def build_engine(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: Instruments | None = None,
) -> Engine:
    """Return an engine that trains `model` as `spec` says; the values of rank 0's model count.

    The model stays on its device. Its float32 parameters and buffers take `spec.dtype`; others keep theirs.
    Without torch.distributed the world is one rank. UsageError for what this engine cannot do.
    """
    instruments = instruments or Instruments()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    moved = choose_collectives(process_group, device)
    collectives = instruments.wrap_collectives(moved)
    groups = make_groups(model, settings.hyperparameters(spec), settings.overrides(spec))
    scaling = settings.scaling(spec)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    share = settings.share(spec, device, count, collectives.world_size)
    counting, clip = settings.accumulation(spec), settings.clip(spec)
    policies = Policies(counting, clip, scaling, share, collectives, moved.close)
    prepare(model, DTYPES[spec.dtype], collectives)
    builder = _CoreBuilder(model, spec, device, moved, policies, instruments, groups)
    return Engine(model, builder.build, policies, groups)


class _CoreBuilder:
    """Builds a core for the parameters that are trained now; one method a choice."""

    def __init__(
        self,
        model: nn.Module,
        spec: EngineSpec,
        device: torch.device,
        moved: Transport,
        policies: Policies,
        instruments: Instruments,
        groups: list[ParamGroup],
    ) -> None:
        self.model, self.spec, self.device, self.moved = model, spec, device, moved
        self.policies, self.instruments, self.groups = policies, instruments, groups
        self.collectives = policies.collectives
        self.near, self.host = Device(device), PinnedHost(device)
        self.param_home: Home = self.near if spec.offload_param == "none" else self.host
        self._solo = SOLO if device.type == "cpu" else math.inf
        self._needs_norm = policies.clip.needs_norm or policies.scaling.needs_norm

    def build(self) -> Core:
        spec = self.spec
        trainables = collect(self.model, self.groups)
        regions = self._regions(trainables)
        layout, offloaded = hold_back(self._layout(trainables, regions.regions), self.policies.share.value)
        shard = Shard(layout, self.collectives.rank, whole=spec.zero_stage == 0)
        placement = placed(shard, offloaded, self.near, self.host)
        parameters = self._parameters(shard, regions)
        dtypes, adam = regions.dtypes, self.instruments.wrap_adam(self._adam())
        route = self._route(shard, placement, dtypes)
        landing, gradients = gradients_of(spec, self.model, trainables, route)
        optimizer = self._optimizer(placement, parameters, dtypes, landing, trainables)
        schedule = self._schedule(optimizer, adam, parameters, gradients, trainables)
        comm, scaling = self.collectives, self.policies.scaling
        summarizer = Summarizer(layout, comm, self._square_sums(landing, adam, schedule))
        set_masters(optimizer, parameters, trainables, self._whole)
        parameters.adopt(trainables)
        frozen, hooks = self._model_side(trainables, gradients, parameters)
        forget_parts(self.model)
        state = EngineState(self.model, trainables, optimizer, parameters, comm, scaling, frozen)
        gradients.reducer.on_reduced = schedule.reduced
        held = [
            *(parameters, *optimizer.masters, optimizer.moments, landing, gradients),
            *(schedule, frozen, self.moved),
        ]
        return Core(trainables, parameters, gradients, optimizer, summarizer, schedule, hooks, state, held)

    def _whole(self, t: Trainable) -> Tensor:
        return whole_values(t.parameter, self.collectives)

    def _regions(self, trainables: Sequence[Trainable]) -> Regions:
        dtype, grain = DTYPES[self.spec.dtype], self.collectives.world_size * NORM_CHUNK
        if self.spec.zero_stage == 3:
            return unit_regions(self.model, trainables, dtype, self.spec.param_persistence_threshold)
        return replicated_regions(trainables, dtype, grain, self._solo)

    def _parameters(self, shard: Shard, regions: Regions) -> ReplicatedParameters | ShardedParameters:
        if self.spec.zero_stage < 3:
            return ReplicatedParameters(shard, regions.dtypes, self.near, self.collectives)
        return self._sharded(shard, regions)

    def _sharded(self, shard: Shard, regions: Regions) -> ShardedParameters:
        return ShardedParameters(
            shard, regions.dtypes, self.device, self.param_home, self.collectives, resident=regions.resident
        )

    def _square_sums(
        self, landing: Landing, adam: AdamBackend, schedule: Schedule
    ) -> Callable[[], Tensor] | None:
        """Return what yields the chunk sums of this rank's gradients, if the step asks for their norm."""
        if not self._needs_norm:
            return None
        if isinstance(schedule, Speculative):
            return schedule.square_sums
        return ChunkSums(landing.shard, self.collectives.rank, landing.sums, adam).take

    def _model_side(
        self,
        trainables: Sequence[Trainable],
        gradients: Gradients,
        parameters: ReplicatedParameters | ShardedParameters,
    ) -> tuple[Frozen, GradientHooks]:
        """Return what is not trained, and the hooks on the model."""
        frozen = collect_frozen(self.model, trainables)
        if isinstance(parameters, ReplicatedParameters):
            return FrozenInPlace(frozen), GradientHooks(trainables, gradients.accept)
        store = self._frozen_store(frozen)
        window = self.spec.prefetch_bucket_size if self.spec.overlap_comm else 0
        gatherer = Gatherer([parameters, store], window=window)
        hooks = GatherHooks(trainables, gradients.accept, self.model, gatherer)
        return FrozenShards(frozen, store, gatherer), hooks

    def _frozen_store(self, frozen: Sequence[Trainable]) -> ShardedParameters:
        dtype, threshold = DTYPES[self.spec.dtype], self.spec.param_persistence_threshold
        regions = unit_regions(self.model, frozen, dtype, threshold)
        shard = Shard(self._layout(frozen, regions.regions), self.collectives.rank)
        store = self._sharded(shard, regions)
        write_segments(shard, frozen, self._whole, store.owned)
        store.adopt(frozen)
        return store

    def _layout(self, trainables: Sequence[Trainable], regions: Sequence[Region]) -> Layout:
        spec = self.spec
        reduce, gather = spec.reduce_bucket_size, spec.allgather_bucket_size
        return plan_layout(
            [t.parameter.numel() for t in trainables],
            regions,
            world_size=self.collectives.world_size,
            block_size=reduce if spec.zero_stage == 0 else min(reduce, gather),
            bucket_size=reduce,
            solo=self._solo if spec.zero_stage else 1,  # stage 0 gathers each bucket in place: one block
        )

    def _adam(self) -> AdamBackend:
        share = self.policies.share.value
        if self.device.type != "cuda" or share == 1.0:
            return NativeAdam()
        return CudaAdam() if share == 0.0 else MixedAdam({"cuda": CudaAdam(), "cpu": NativeAdam()})

    def _optimizer(
        self,
        placement: Placement,
        parameters: Parameters,
        dtypes: Sequence[torch.dtype],
        landing: Landing,
        trainables: Sequence[Trainable],
    ) -> ShardOptimizer:
        o, shard = self.spec.optimizer, landing.shard
        masters = masters_of(shard, placement, parameters, dtypes, self.param_home)
        amsgrad = any(group["amsgrad"] for group in self.groups)
        stochastic = o.moments_rounding == "stochastic"
        moments = Moments(placement, DTYPES[o.moments_dtype], amsgrad=amsgrad, stochastic=stochastic)
        group_of, size = [t.group for t in trainables], self.spec.sub_group_size
        return ShardOptimizer(
            shard, masters, moments, landing.sums, self.groups, group_of, sub_group_size=size
        )

    def _schedule(
        self,
        optimizer: ShardOptimizer,
        adam: AdamBackend,
        parameters: Parameters,
        gradients: Gradients,
        trainables: Sequence[Trainable],
    ) -> AfterBackward | Speculative:
        spec, policies = self.spec, self.policies
        if spec.offload_schedule == "after_backward":
            return AfterBackward(optimizer, adam, parameters)
        knowledge = Knowledge(lambda: gradients.contributed, policies.unclipped_scale, self._needs_norm)
        settings = Settings(spec.sub_group_size, spec.optimizer_threads, spec.rollback)
        return speculate(optimizer, adam, parameters, trainables, knowledge, settings)

    def _route(self, shard: Shard, placement: Placement, dtypes: Sequence[torch.dtype]) -> Route:
        spec, several = self.spec, self.collectives.world_size > 1  # alone, nothing is sent
        in_flight = (BUCKETS_IN_FLIGHT - shard.whole) * spec.reduce_bucket_size
        sent = DTYPES[spec.communication_dtype] if spec.communication_dtype and several else None
        return Route(
            shard,
            placement,
            self.device,
            self.collectives,
            self.moved,
            in_flight if spec.overlap_comm and several else 0,
            Wire(dtypes, DTYPES[spec.grad_accum_dtype], sent),
        )
