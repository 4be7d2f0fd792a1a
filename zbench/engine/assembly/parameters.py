"""Builds one column of the stage table: how parameters are grouped, stored, and attached to the model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import cached_property

import torch
from torch import nn

from zbench.engine.adam import NORM_CHUNK
from zbench.engine.assembly.settings import DTYPES, Sizes
from zbench.engine.memory.kinds import Memories
from zbench.engine.parameters.access import Access, Frozen, FrozenShards
from zbench.engine.parameters.base import Parameters, ParamInfo
from zbench.engine.parameters.deferred import make_whole, values_in_turn
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.grouping import GroupPlan, blocks_of, module_groups, replicated_groups
from zbench.engine.parameters.hooks import GatherHooks, GradientHooks
from zbench.engine.parameters.leaves import LeafModules, find_leaves
from zbench.engine.parameters.replicated import ReplicatedParameters
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.partition import Layout
from zbench.engine.protocols import Collectives, GradientSink
from zbench.engine.shard_layout import ShardedLayout, ShardLayout
from zbench.engine.transport.agreement import Agreement
from zbench.spec.engine import EngineSpec

Plan = Callable[[Sequence[int], GroupPlan], Layout]
"""Lays parameters of these sizes out in groups."""


class ParameterBuilder(ABC):
    """Builds the parameters of one model, in the order of its methods; only `attach` changes the model."""

    def __init__(
        self,
        model: nn.Module,
        spec: EngineSpec,
        memories: Memories,
        collectives: Collectives,
        agreement: Agreement,
        plan_layout: Plan,
        sizes: Sizes,
    ) -> None:
        self.model, self.spec, self.memories = model, spec, memories
        self.dtype, self.collectives, self._agreement = DTYPES[spec.dtype], collectives, agreement
        self._plan_layout, self._sizes = plan_layout, sizes

    @abstractmethod
    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        """Return which parameters are stored and gathered together."""

    @abstractmethod
    def store(self, param_infos: Sequence[ParamInfo], shard: ShardLayout, plan: GroupPlan) -> Parameters:
        """Return the memory of the trained parameters."""

    @abstractmethod
    def frozen(self, members: Sequence[ParamInfo]) -> Frozen:
        """Return the memory of the parameters that are not trained."""

    @abstractmethod
    def attach(self, frozen: Frozen, sink: GradientSink) -> tuple[GradientHooks, Access]:
        """Have the model use the stored parameters; return the hooks on it, and access from outside. The
        trained parameters' values are stored, those of the frozen ones are taken from the model.
        """


class ReplicatedBuilder(ParameterBuilder):
    """Builds ReplicatedParameters."""

    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        alignment = self.collectives.world_size * NORM_CHUNK
        return replicated_groups(param_infos, self.dtype, alignment, self._sizes.standalone)

    def store(
        self, param_infos: Sequence[ParamInfo], shard: ShardLayout, plan: GroupPlan
    ) -> ReplicatedParameters:
        watched = self.spec.compile == "off"  # a compiler knows torch's own classes only
        self._store = ReplicatedParameters(
            param_infos, shard, plan.dtypes, self.memories.local, self.collectives, watched=watched
        )
        return self._store

    def frozen(self, members: Sequence[ParamInfo]) -> Frozen:
        return Frozen(members)

    def attach(self, frozen: Frozen, sink: GradientSink) -> tuple[GradientHooks, Access]:
        hooks = GradientHooks(self._store.param_infos, sink.accept, self.model, self._store.handed_out.note)
        with ExitStack() as undo:
            undo.callback(hooks.remove)
            hooks.attach()
            for t in frozen.members:
                make_whole(t.parameter, self.dtype, self.collectives)
            self._store.adopt()
            undo.pop_all()
        store = self._store
        return hooks, Access(
            self.collectives, self._agreement, lambda _: nullcontext(), store.absorb, [store]
        )


class ShardedBuilder(ParameterBuilder):
    """Builds ShardedParameters: one store for the trained parameters, and one for the frozen ones."""

    @cached_property
    def _blocks(self) -> list[nn.Module]:
        return blocks_of(self.model, self._sizes.block)

    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        leaves = find_leaves(self.model, self.spec.leaf_modules)
        threshold = self.spec.param_persistence_threshold
        return module_groups(self.model, param_infos, self.dtype, threshold, leaves, self._blocks)

    def store(
        self, param_infos: Sequence[ParamInfo], shard: ShardLayout, plan: GroupPlan
    ) -> ShardedParameters:
        near = {self.spec.offload_param, self.spec.offload_optimizer} == {"none"}  # then masters are stored
        self._store = self._sharded(param_infos, shard, plan, torch.float32 if near else None)
        return self._store

    def _sharded(
        self, members: Sequence[ParamInfo], shard: ShardLayout, plan: GroupPlan, stored: torch.dtype | None
    ) -> ShardedParameters:
        local, host = self.memories.local, self.memories.host
        memory = local if self.spec.offload_param == "none" else host
        return ShardedParameters(members, shard, plan, local.device, memory, self.collectives, stored)

    def frozen(self, members: Sequence[ParamInfo]) -> FrozenShards:
        plan = self.groups(members)
        layout = self._plan_layout([t.parameter.numel() for t in members], plan)
        store = self._sharded(members, ShardedLayout(layout, self.collectives.rank), plan, None)
        sizes, overlaps = self._sizes, self.spec.overlap_comm
        self._gatherer = Gatherer(
            (self._store, store),
            window=sizes.prefetch if overlaps else 0,
            least=sizes.groups_ahead if overlaps else 0,
        )
        return FrozenShards(store, self._gatherer)

    def attach(self, frozen: Frozen, sink: GradientSink) -> tuple[GradientHooks, Access]:
        gatherer, param_infos = self._gatherer, self._store.param_infos
        access = Access(self.collectives, self._agreement, gatherer.holding, gatherer.absorb, gatherer.stores)
        modules = find_leaves(self.model, self.spec.leaf_modules)
        leaves = LeafModules(modules, gatherer, param_infos, sink.absent)
        hooks = GatherHooks(param_infos, sink.accept, self.model, gatherer, leaves, self._blocks)
        with ExitStack() as undo:
            undo.callback(hooks.remove)
            hooks.attach()
            frozen.fill(lambda t: values_in_turn(t.parameter, self.collectives))
            for store in gatherer.stores:
                store.adopt()
            undo.pop_all()
        return hooks, access


PARAMETER_BUILDERS: dict[type[Parameters], type[ParameterBuilder]] = {
    ReplicatedParameters: ReplicatedBuilder,
    ShardedParameters: ShardedBuilder,
}
