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
    GroupPlan,
    collect,
    collect_frozen,
    make_groups,
    module_groups,
    prepare,
    replicated_groups,
)
from zbench.engine.assembly.reduction import gradients_of
from zbench.engine.assembly.settings import DTYPES
from zbench.engine.checkpoint.state import EngineState, set_masters
from zbench.engine.engine import Core, Engine, Policies
from zbench.engine.gradients.config import DtypePolicy, ReductionConfig
from zbench.engine.gradients.norm import ChunkSums, Summarizer
from zbench.engine.gradients.reduced_buffers import ReducedGradientBuffer
from zbench.engine.gradients.sinks import Gradients
from zbench.engine.memory.buffers import MemoryLayout, memory_layout_of
from zbench.engine.memory.kinds import Memories, Memory
from zbench.engine.optimizer.masters import make_masters
from zbench.engine.optimizer.offload_split import split_layout
from zbench.engine.optimizer.schedule import AfterBackward, Schedule
from zbench.engine.optimizer.shard_optimizer import Moments, ParamGroup, ShardOptimizer
from zbench.engine.parameters.deferred import forget_parts, whole_values
from zbench.engine.parameters.frozen import Frozen, FrozenInPlace, FrozenShards
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.hooks import GatherHooks, GradientHooks
from zbench.engine.parameters.replicated import Parameters, ParamInfo, ReplicatedParameters, write_segments
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.partition import GatherGroup, Layout, ShardLayout, plan_layout
from zbench.engine.protocols import Collectives
from zbench.engine.speculative import SpeculationSettings, Speculative, StepAssumptions, speculate
from zbench.engine.transport.choose import Transport, choose_collectives
from zbench.spec.engine import EngineSpec

BUCKETS_IN_FLIGHT = 2  # one less at stage 0, on top of whose whole gradient they come
STANDALONE_THRESHOLD = 1 << 17  # elements from which a copy costs the CPU more than a collective of its own


@dataclass(frozen=True, slots=True)
class Instruments:
    """Wrappers around what the engine calls, so that it can be measured, or simulated, from outside."""

    wrap_collectives: Callable[[Collectives], Collectives] = lambda inner: inner
    wrap_adam: Callable[[AdamBackend], AdamBackend] = lambda inner: inner
    memories: Callable[[torch.device], Memories] = Memories.of


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
    memories = instruments.memories(device)
    transport = choose_collectives(process_group, device)
    collectives = instruments.wrap_collectives(transport)
    groups = make_groups(model, settings.hyperparameters(spec), settings.overrides(spec))
    scaling = settings.scaling(spec)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    share = settings.share(spec, memories, count, collectives.world_size)
    counting, clip = settings.accumulation(spec), settings.clip(spec)
    policies = Policies(counting, clip, scaling, share, collectives, transport.close)
    prepare(model, DTYPES[spec.dtype], collectives)
    builder = _CoreBuilder(model, spec, memories, transport, policies, instruments, groups)
    return Engine(model, builder.build, policies, groups)


class _CoreBuilder:
    """Builds a core for the parameters that are trained now; one method a choice."""

    def __init__(
        self,
        model: nn.Module,
        spec: EngineSpec,
        memories: Memories,
        transport: Transport,
        policies: Policies,
        instruments: Instruments,
        groups: list[ParamGroup],
    ) -> None:
        self.model, self.spec, self.transport = model, spec, transport
        self.policies, self.instruments, self.groups = policies, instruments, groups
        self.collectives = policies.collectives
        self.near, self.host, self.device = memories.near, memories.host, memories.near.device
        self.param_memory: Memory = self.near if spec.offload_param == "none" else self.host
        self._standalone_threshold = STANDALONE_THRESHOLD if self.device.type == "cpu" else math.inf
        self._needs_norm = policies.clip.needs_norm or policies.scaling.needs_norm

    def build(self) -> Core:
        spec = self.spec
        param_infos = collect(self.model, self.groups)
        groups = self._groups(param_infos)
        layout, offloaded = split_layout(self._layout(param_infos, groups.groups), self.policies.share.value)
        shard = ShardLayout(layout, self.collectives.rank, whole=spec.zero_stage == 0)
        memory_layout = memory_layout_of(shard, offloaded, self.near, self.host)
        parameters = self._parameters(shard, groups)
        dtypes, adam = groups.dtypes, self.instruments.wrap_adam(self._adam())
        config = self._config(shard, memory_layout, dtypes)
        reduced_gradients, gradients = gradients_of(spec, self.model, param_infos, config)
        optimizer = self._optimizer(memory_layout, parameters, dtypes, reduced_gradients, param_infos)
        schedule = self._schedule(optimizer, adam, parameters, gradients, param_infos)
        comm, scaling = self.collectives, self.policies.scaling
        summarizer = Summarizer(layout, comm, self._square_sums(reduced_gradients, adam, schedule))
        set_masters(optimizer, parameters, param_infos, self._whole)
        parameters.adopt(param_infos)
        frozen, hooks = self._model_side(param_infos, gradients, parameters)
        forget_parts(self.model)
        state = EngineState(self.model, param_infos, optimizer, parameters, comm, scaling, frozen)
        gradients.reducer.on_reduced = schedule.reduced
        held = [
            *(parameters, *optimizer.masters, optimizer.moments, reduced_gradients, gradients),
            *(schedule, frozen, self.transport),
        ]
        return Core(param_infos, parameters, gradients, optimizer, summarizer, schedule, hooks, state, held)

    def _whole(self, t: ParamInfo) -> Tensor:
        return whole_values(t.parameter, self.collectives)

    def _groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        dtype, alignment = DTYPES[self.spec.dtype], self.collectives.world_size * NORM_CHUNK
        if self.spec.zero_stage == 3:
            return module_groups(self.model, param_infos, dtype, self.spec.param_persistence_threshold)
        return replicated_groups(param_infos, dtype, alignment, self._standalone_threshold)

    def _parameters(self, shard: ShardLayout, groups: GroupPlan) -> ReplicatedParameters | ShardedParameters:
        if self.spec.zero_stage < 3:
            return ReplicatedParameters(shard, groups.dtypes, self.near, self.collectives)
        return self._sharded(shard, groups)

    def _sharded(self, shard: ShardLayout, groups: GroupPlan) -> ShardedParameters:
        return ShardedParameters(
            shard, groups.dtypes, self.device, self.param_memory, self.collectives, resident=groups.resident
        )

    def _square_sums(
        self, reduced_gradients: ReducedGradientBuffer, adam: AdamBackend, schedule: Schedule
    ) -> Callable[[], Tensor] | None:
        """Return what yields the chunk sums of this rank's gradients, if the step asks for their norm."""
        if not self._needs_norm:
            return None
        if isinstance(schedule, Speculative):
            return schedule.square_sums
        return ChunkSums(reduced_gradients.shard, self.collectives.rank, reduced_gradients.sums, adam).take

    def _model_side(
        self,
        param_infos: Sequence[ParamInfo],
        gradients: Gradients,
        parameters: ReplicatedParameters | ShardedParameters,
    ) -> tuple[Frozen, GradientHooks]:
        """Return what is not trained, and the hooks on the model."""
        frozen = collect_frozen(self.model, param_infos)
        if isinstance(parameters, ReplicatedParameters):
            return FrozenInPlace(frozen), GradientHooks(param_infos, gradients.accept)
        store = self._frozen_store(frozen)
        window = self.spec.prefetch_bucket_size if self.spec.overlap_comm else 0
        gatherer = Gatherer([parameters, store], window=window)
        hooks = GatherHooks(param_infos, gradients.accept, self.model, gatherer)
        return FrozenShards(frozen, store, gatherer), hooks

    def _frozen_store(self, frozen: Sequence[ParamInfo]) -> ShardedParameters:
        dtype, threshold = DTYPES[self.spec.dtype], self.spec.param_persistence_threshold
        groups = module_groups(self.model, frozen, dtype, threshold)
        shard = ShardLayout(self._layout(frozen, groups.groups), self.collectives.rank)
        store = self._sharded(shard, groups)
        write_segments(shard, frozen, self._whole, store.owned)
        store.adopt(frozen)
        return store

    def _layout(self, param_infos: Sequence[ParamInfo], groups: Sequence[GatherGroup]) -> Layout:
        spec = self.spec
        reduce, gather = spec.reduce_bucket_size, spec.allgather_bucket_size
        return plan_layout(
            [t.parameter.numel() for t in param_infos],
            groups,
            world_size=self.collectives.world_size,
            block_size=reduce if spec.zero_stage == 0 else min(reduce, gather),
            bucket_size=reduce,
            standalone_threshold=self._standalone_threshold
            if spec.zero_stage
            else 1,  # stage 0 gathers each bucket in place: one block
        )

    def _adam(self) -> AdamBackend:
        share = self.policies.share.value
        if self.device.type != "cuda" or share == 1.0:
            return NativeAdam()
        return CudaAdam() if share == 0.0 else MixedAdam({"cuda": CudaAdam(), "cpu": NativeAdam()})

    def _optimizer(
        self,
        memory_layout: MemoryLayout,
        parameters: Parameters,
        dtypes: Sequence[torch.dtype],
        reduced_gradients: ReducedGradientBuffer,
        param_infos: Sequence[ParamInfo],
    ) -> ShardOptimizer:
        o, shard = self.spec.optimizer, reduced_gradients.shard
        masters = make_masters(shard, memory_layout, parameters, dtypes, self.param_memory)
        amsgrad = any(group["amsgrad"] for group in self.groups)
        stochastic = o.moments_rounding == "stochastic"
        moments = Moments(memory_layout, DTYPES[o.moments_dtype], amsgrad=amsgrad, stochastic=stochastic)
        group_of, size = [t.group for t in param_infos], self.spec.sub_group_size
        return ShardOptimizer(
            shard, masters, moments, reduced_gradients.sums, self.groups, group_of, sub_group_size=size
        )

    def _schedule(
        self,
        optimizer: ShardOptimizer,
        adam: AdamBackend,
        parameters: Parameters,
        gradients: Gradients,
        param_infos: Sequence[ParamInfo],
    ) -> AfterBackward | Speculative:
        spec, policies = self.spec, self.policies
        if spec.offload_schedule == "after_backward":
            return AfterBackward(optimizer, adam, parameters)
        assumptions = StepAssumptions(
            lambda: gradients.contributed, policies.unclipped_scale, self._needs_norm
        )
        settings = SpeculationSettings(spec.sub_group_size, spec.optimizer_threads, spec.rollback)
        return speculate(optimizer, adam, parameters, param_infos, assumptions, settings)

    def _config(
        self, shard: ShardLayout, memory_layout: MemoryLayout, dtypes: Sequence[torch.dtype]
    ) -> ReductionConfig:
        spec, several = self.spec, self.collectives.world_size > 1  # alone, nothing is sent
        in_flight = (BUCKETS_IN_FLIGHT - shard.whole) * spec.reduce_bucket_size
        sent = DTYPES[spec.communication_dtype] if spec.communication_dtype and several else None
        return ReductionConfig(
            shard,
            memory_layout,
            self.device,
            self.collectives,
            self.transport,
            in_flight if spec.overlap_comm and several else 0,
            DtypePolicy(dtypes, DTYPES[spec.grad_accum_dtype], sent),
        )
