"""Builds one column of the stage table: how parameters are grouped, stored, and attached to the model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from zbench.engine.adam import NORM_CHUNK
from zbench.engine.memory.kinds import Memory
from zbench.engine.parameters.access import Access
from zbench.engine.parameters.deferred import make_whole
from zbench.engine.parameters.frozen import Frozen, FrozenShards
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.grouping import GroupPlan, module_groups, replicated_groups
from zbench.engine.parameters.hooks import GatherHooks, GradientHooks
from zbench.engine.parameters.leaves import LeafModules, find_leaves
from zbench.engine.parameters.replicated import Parameters, ParamInfo, ReplicatedParameters
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.partition import GatherGroup, Layout
from zbench.engine.protocols import Collectives, GradientSink
from zbench.engine.shard_layout import ShardedLayout, ShardLayout
from zbench.engine.transport.agreement import Agreement

Value = Callable[[ParamInfo], Tensor]


@dataclass(frozen=True, slots=True)
class ParameterSettings:
    """What grouping, storing and gathering depend on.

    dtype: of parameters that the model has in float32. memory: of what is stored between steps.
    standalone_threshold: elements from which a replicated parameter has a group of its own.
    persistence_threshold: elements up to which a sharded parameter stays gathered. prefetch: elements that
    are gathered ahead. leaf_modules: names or classes of modules that are gathered at once. layout: lays
    parameters of these sizes and groups out. watched: whether replicated parameters note that `p.data` was
    read; a compiler knows torch's own classes only.
    """

    dtype: torch.dtype
    device: torch.device
    memory: Memory
    standalone_threshold: float
    persistence_threshold: int
    prefetch: int
    leaf_modules: Sequence[str]
    layout: Callable[[Sequence[int], Sequence[GatherGroup]], Layout]
    watched: bool = True


@dataclass(frozen=True, slots=True)
class Attached:
    """What a model with its parameters in place has: hooks, and access from outside."""

    hooks: GradientHooks
    access: Access


class ParameterBuilder(ABC):
    """Builds the parameters of one model, in the order of its methods; only `attach` changes the model."""

    def __init__(
        self, model: nn.Module, settings: ParameterSettings, collectives: Collectives, agreement: Agreement
    ) -> None:
        self.model, self.settings = model, settings
        self.collectives, self._agreement = collectives, agreement

    @abstractmethod
    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        """Return which parameters are stored and gathered together."""

    @abstractmethod
    def store(self, shard: ShardLayout, plan: GroupPlan) -> Parameters:
        """Return the memory of the trained parameters."""

    @abstractmethod
    def frozen(self, members: Sequence[ParamInfo]) -> Frozen:
        """Return the memory of the parameters that are not trained."""

    @abstractmethod
    def fill(self, param_infos: Sequence[ParamInfo], frozen: Frozen, value: Value) -> None:
        """Store the frozen parameters, and gather what the model needs whole; the trained ones are stored.

        value: returns the whole value of a frozen parameter; a collective.
        """

    @abstractmethod
    def attach(self, param_infos: Sequence[ParamInfo], frozen: Frozen, sink: GradientSink) -> Attached:
        """Have the model use the stored parameters, and register the hooks on it."""


class ReplicatedBuilder(ParameterBuilder):
    """Builds ReplicatedParameters."""

    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        alignment = self.collectives.shards * NORM_CHUNK
        return replicated_groups(
            param_infos, self.settings.dtype, alignment, self.settings.standalone_threshold
        )

    def store(self, shard: ShardLayout, plan: GroupPlan) -> ReplicatedParameters:
        settings = self.settings
        self._stored = ReplicatedParameters(
            shard, plan.dtypes, settings.memory, self.collectives, watched=settings.watched
        )
        return self._stored

    def frozen(self, members: Sequence[ParamInfo]) -> Frozen:
        return Frozen(members)

    def fill(self, param_infos: Sequence[ParamInfo], frozen: Frozen, value: Value) -> None:
        for t in frozen.members:
            make_whole(t.parameter, self.settings.dtype, self.collectives)

    def attach(self, param_infos: Sequence[ParamInfo], frozen: Frozen, sink: GradientSink) -> Attached:
        self._stored.adopt(param_infos)
        access = Access(self.collectives, self._agreement, lambda _: nullcontext(), self._stored.absorb)
        return Attached(GradientHooks(param_infos, sink.accept, self.model), access)


class ShardedBuilder(ParameterBuilder):
    """Builds ShardedParameters: one store for the trained parameters, and one for the frozen ones."""

    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        settings, leaves = self.settings, self._leaves
        leaves.modules = find_leaves(self.model, settings.leaf_modules)  # some may be new
        threshold = settings.persistence_threshold
        return module_groups(self.model, param_infos, settings.dtype, threshold, leaves.modules)

    def store(self, shard: ShardLayout, plan: GroupPlan) -> ShardedParameters:
        self._store = self._sharded(shard, plan)
        return self._store

    def _sharded(self, shard: ShardLayout, plan: GroupPlan) -> ShardedParameters:
        chosen, comm = self.settings, self.collectives
        memory, resident = chosen.memory, plan.resident
        return ShardedParameters(shard, plan.dtypes, chosen.device, memory, comm, resident=resident)

    def frozen(self, members: Sequence[ParamInfo]) -> Frozen:
        plan = self.groups(members)
        layout = self.settings.layout([t.parameter.numel() for t in members], plan.groups)
        self._frozen_store = self._sharded(ShardedLayout(layout, self.collectives.rank), plan)
        return FrozenShards(members, self._frozen_store, self._gatherer)

    def fill(self, param_infos: Sequence[ParamInfo], frozen: Frozen, value: Value) -> None:
        frozen.fill(value)
        whole = self._gatherer.must_stay_whole()
        self._store.expect(param_infos, whole)
        self._frozen_store.expect(frozen.members, whole)

    def attach(self, param_infos: Sequence[ParamInfo], frozen: Frozen, sink: GradientSink) -> Attached:
        stores, gatherer = (self._store, self._frozen_store), self._gatherer
        for store in stores:
            store.adopt(store.param_infos)
        gatherer.adopt(stores)
        access = Access(self.collectives, self._agreement, gatherer.holding, gatherer.absorb)
        self._leaves.expect(param_infos, sink.absent)
        hooks = GatherHooks(param_infos, sink.accept, self.model, gatherer, self._leaves)
        return Attached(hooks, access)

    @cached_property
    def _gatherer(self) -> Gatherer:
        """The same for every core: graphs of before a rebuild find their parameters through it."""
        return Gatherer(window=self.settings.prefetch)

    @cached_property
    def _leaves(self) -> LeafModules:
        return LeafModules(find_leaves(self.model, self.settings.leaf_modules), self._gatherer)


PARAMETER_BUILDERS: dict[type[Parameters], type[ParameterBuilder]] = {
    ReplicatedParameters: ReplicatedBuilder,
    ShardedParameters: ShardedBuilder,
}
