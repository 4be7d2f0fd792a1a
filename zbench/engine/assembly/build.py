"""EngineSpec -> Engine: reads the stage table and puts the parts together."""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine.adam import AdamBackend
from zbench.engine.assembly import discovery, settings
from zbench.engine.assembly.gradients import GradientBuilder
from zbench.engine.assembly.optimizer import make_adam, make_optimizer
from zbench.engine.assembly.parameters import PARAMETER_BUILDERS, ParameterBuilder
from zbench.engine.assembly.settings import DTYPES, sizes_on
from zbench.engine.assembly.speculation import speculate
from zbench.engine.assembly.stages import stage_of
from zbench.engine.checkpoint.state import EngineState, set_masters
from zbench.engine.engine import Core, Engine
from zbench.engine.gradients.gradients import Gradients
from zbench.engine.gradients.norm import Summarizer, part_square_sums
from zbench.engine.memory.buffers import memory_layout_of
from zbench.engine.memory.kinds import Memories
from zbench.engine.optimizer.schedule import Schedule
from zbench.engine.optimizer.shard_optimizer import AfterBackward, ParamGroup, ShardOptimizer
from zbench.engine.parameters.base import Parameters
from zbench.engine.parameters.deferred import forget_parts, values_in_turn
from zbench.engine.parameters.grouping import GroupPlan
from zbench.engine.parameters.leaves import find_leaves
from zbench.engine.parameters.ownership import check_unused
from zbench.engine.partition import Layout, plan_layout, split_layout
from zbench.engine.policies import Clip, Policies
from zbench.engine.protocols import Collectives, HoldsBytes
from zbench.engine.shard_layout import Segment
from zbench.engine.speculative.schedule import StepAssumptions
from zbench.engine.transport.choose import ChooseTransport, Transport, choose_collectives
from zbench.engine.transport.collective_checks import BUILD, MODEL, all_or_none
from zbench.spec.combinations import acts
from zbench.spec.engine import EngineSpec


def _to_device(model: nn.Module, device: torch.device) -> nn.Module:
    return model if device.type == "cpu" else model.to(device)


@dataclass(frozen=True, slots=True)
class Instruments:
    """Wrappers around what the engine calls, so that it can be measured or simulated from outside.

    on_host: what the CPU allocates in its context is host memory. to_device: moves a model that was built in
    parts on the host; these stay there. device_type: of the device whose default sizes are taken; None: that
    of the model's own. memory_limit: the bytes that this rank may allocate beside its model, where that is
    known.
    """

    wrap_collectives: Callable[[Collectives], Collectives] = lambda inner: inner
    wrap_adam: Callable[[AdamBackend], AdamBackend] = lambda inner: inner
    memories: Callable[[torch.device], Memories] = Memories.of
    transport: ChooseTransport = choose_collectives
    on_host: Callable[[], AbstractContextManager[None]] = nullcontext
    to_device: Callable[[nn.Module, torch.device], nn.Module] = _to_device
    device_type: str | None = None
    memory_limit: int | None = None


def build_engine(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: Instruments | None = None,
) -> Engine:
    """Return an engine that trains `model` as `spec` says, starting from the values of rank 0's model.

    The model stays on its device. Its float32 parameters take `spec.dtype`, and its float32 buffers
    `spec.buffer_dtype`, where that is set; other tensors keep theirs.
    Without torch.distributed the world is one rank. UsageError for what this engine cannot do.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    settings.check(spec, device)
    check_unused(model)
    find_leaves(model, spec.leaf_modules)  # refuses what is not there
    dtypes = DTYPES[spec.dtype], DTYPES[spec.buffer_dtype or spec.dtype]
    discovery.check_buffers(model, *dtypes)
    instruments = instruments or Instruments()
    memories = instruments.memories(device)
    transport = instruments.transport(
        process_group, memories.local, memories.host, spec.shard_group_size, spec.reduction
    )
    collectives = instruments.wrap_collectives(transport)
    groups = discovery.make_groups(model, settings.hyperparameters(spec), settings.overrides(spec))
    scaling = settings.scaling(spec)
    counting = settings.accumulation(spec)
    clip = Clip(spec.gradient_clipping or math.inf)
    policies = Policies(counting, clip, scaling, collectives, transport.close)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    with all_or_none(collectives, transport.agreement, MODEL) as alike:
        alike += discovery.described(parameters, buffers)
        discovery.check_memory(model)
    discovery.prepare(parameters, buffers, dtypes, collectives)
    builder = _Builder(model, spec, memories, transport, policies, instruments, groups)
    return Engine(model, builder.build(), policies, groups)


class _Builder:
    """Builds the core of an engine; one method per choice."""

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
        self.stage = stage_of(spec)
        self.collectives = policies.collectives
        self.memories, self.device = memories, memories.local.device
        self._device_type = instruments.device_type or self.device.type
        self._sizes = sizes_on(spec, self._device_type)
        self._needs_norm = policies.clip.needs_norm or policies.scaling.needs_norm

    def build(self) -> Core:
        """Store the values of the model, and attach the engine to it. An error of one rank alone, in what it
        does without the others, is raised on all, and the model stays as it is.
        """
        comm = self.collectives
        offload_ratio = settings.offload_ratio(self.spec)
        with ExitStack() as undo:
            with all_or_none(comm, self.transport.agreement, BUILD) as alike:
                param_infos, members = discovery.collect(self.model, self.groups)
                builder = self._parameter_builder()
                plan = builder.groups(param_infos)
                sizes = [t.parameter.numel() for t in param_infos]
                layout, offloaded = split_layout(self._layout(sizes, plan), offload_ratio)
                settings.check_blocks(layout, plan.dtypes, self.instruments.memory_limit)
                shard = self.stage.optimizer_state(layout, comm.rank)
                memory_layout = memory_layout_of(shard, offloaded, self.memories.local, self.memories.host)
                parameters = builder.store(param_infos, shard, plan)
                frozen = builder.frozen(members)
                reducing = GradientBuilder(
                    self.spec,
                    shard,
                    memory_layout,
                    self.device,
                    plan.dtypes,
                    self.collectives,
                    self._in_flight(layout),
                )
                gradients = reducing.build(self.model, param_infos, self.transport)
                optimizer = make_optimizer(
                    self.spec, memory_layout, parameters, gradients.sums, self.groups, self._device_type
                )
                adam = make_adam(self.device, offload_ratio, self.spec.optimizer_threads)
                adam = self.instruments.wrap_adam(adam)
                schedule = self._schedule(optimizer, adam, parameters, gradients, offloaded)
                undo.callback(schedule.close)
                alike += [f"{t.name!r} in group {t.group}" for t in param_infos]
            set_masters(optimizer, parameters, lambda t: values_in_turn(t.parameter, comm))
            gradients.buckets.on_reduced = schedule.reduced
            parameters.on_edit = partial(_take_edit, schedule, optimizer)
            parameters.has_masters = any(masters.flats for masters in optimizer.masters)
            gradients.attach()
            hooks, access = builder.attach(frozen, gradients)
            undo.pop_all()
        forget_parts(self.model)
        agreement = self.transport.agreement
        summarizer = Summarizer(comm, agreement, schedule.square_sums, always=self._needs_norm)
        attend = self.transport.agreement.attend
        state = EngineState(self.model, optimizer, parameters, comm, self.policies.scaling, frozen, attend)
        holders: list[HoldsBytes] = [parameters, *optimizer.masters, optimizer.moments]
        holders += [gradients.sums, gradients, schedule, frozen, self.transport]
        return Core(
            parameters, gradients, optimizer, summarizer, schedule, state, hooks, access, tuple(holders)
        )

    def _parameter_builder(self) -> ParameterBuilder:
        return PARAMETER_BUILDERS[self.stage.parameters](
            self.model,
            self.spec,
            self.memories,
            self.collectives,
            self.transport.agreement,
            self._layout,
            self._sizes,
        )

    def _layout(self, sizes: Sequence[int], plan: GroupPlan) -> Layout:
        reduce = self.spec.reduce_bucket_size or (sys.maxsize if plan.whole else self._sizes.reduction)
        gathers = acts(self.spec, ("engine", "allgather_bucket_size"))
        gather = self.spec.allgather_bucket_size if gathers else None
        block_size = min(reduce, gather or reduce)
        shards = self.collectives.shards
        replicas = self.collectives.world_size // shards
        return plan_layout(sizes, plan.groups, shards=shards, block_size=block_size, replicas=replicas)

    def _in_flight(self, layout: Layout) -> int:
        """Return the most elements that are reduced at once: two buckets on a device."""
        if self.spec.leaf_modules:  # a rank may not wait for one that gathers first
            return sys.maxsize
        if not self.spec.overlap_comm or self.collectives.world_size == 1:  # alone, nothing is sent
            return 0
        if self._device_type == "cpu":
            return (self._sizes.reduction + 1) // 2
        return 2 * max((bucket.length for bucket in layout.buckets), default=1)

    def _schedule(
        self,
        optimizer: ShardOptimizer,
        adam: AdamBackend,
        parameters: Parameters,
        gradients: Gradients,
        offloaded: int,
    ) -> Schedule:
        spec, policies = self.spec, self.policies
        if spec.offload_schedule == "after_backward":
            sums = partial(part_square_sums, optimizer.shard, optimizer.gradients, adam)
            return AfterBackward(optimizer, adam, parameters, sums)
        assumptions = StepAssumptions(
            lambda: gradients.contributed,
            lambda: policies.factor(policies.scaling.scale, 1.0),
            self._needs_norm,
        )
        alone = self.collectives.world_size == 1
        return speculate(
            spec,
            optimizer,
            adam,
            parameters,
            assumptions,
            device_type=self._device_type,
            offloaded=offloaded,
            alone=alone,
        )


def _take_edit(schedule: Schedule, optimizer: ShardOptimizer, segment: Segment, values: Tensor) -> None:
    schedule.state_changed()
    optimizer.take_edit(segment, values)
