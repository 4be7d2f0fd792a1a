"""Builds one column of the stage table: how parameters are grouped, stored, and attached to the model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from zbench.engine.adam import NORM_CHUNK
from zbench.engine.memory.kinds import Memory
from zbench.engine.parameters.access import Access, Frozen, FrozenShards
from zbench.engine.parameters.base import Parameters, ParamInfo
from zbench.engine.parameters.deferred import make_whole, whole_values
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.grouping import GroupPlan, module_groups, replicated_groups
from zbench.engine.parameters.hooks import GatherHooks, GradientHooks
from zbench.engine.parameters.leaves import LeafModules, find_leaves
from zbench.engine.parameters.replicated import ReplicatedParameters
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.partition import GatherGroup, Layout
from zbench.engine.protocols import Collectives, GradientSink
from zbench.engine.shard_layout import ShardedLayout, ShardLayout
from zbench.engine.transport.agreement import Agreement


@dataclass(frozen=True, slots=True)
class ParameterSettings:
    """What grouping, storing and gathering depend on.

    dtype: of parameters that the model has in float32. memory: of what is stored between steps.
    standalone_threshold: elements from which a replicated parameter has a group of its own.
    persistence_threshold: elements up to which a sharded parameter stays gathered. prefetch: elements that
    are gathered ahead. leaf_modules: names or classes of modules that are gathered at once. layout: lays
    parameters of these sizes and groups out. watched: whether replicated parameters note that `p.data` was
    read; a compiler knows torch's own classes only. stored: the dtype of what is stored of sharded parameters
    between their uses, their master weights; None: their own.
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
    stored: torch.dtype | None = None


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
        alignment = self.collectives.shards * NORM_CHUNK
        return replicated_groups(
            param_infos, self.settings.dtype, alignment, self.settings.standalone_threshold
        )

    def store(
        self, param_infos: Sequence[ParamInfo], shard: ShardLayout, plan: GroupPlan
    ) -> ReplicatedParameters:
        settings, comm = self.settings, self.collectives
        self._store = ReplicatedParameters(
            param_infos, shard, plan.dtypes, settings.memory, comm, watched=settings.watched
        )
        return self._store

    def frozen(self, members: Sequence[ParamInfo]) -> Frozen:
        return Frozen(members)

    def attach(self, frozen: Frozen, sink: GradientSink) -> tuple[GradientHooks, Access]:
        for t in frozen.members:
            make_whole(t.parameter, self.settings.dtype, self.collectives)
        self._store.adopt()
        access = Access(self.collectives, self._agreement, lambda _: nullcontext(), self._store.absorb)
        return GradientHooks(self._store.param_infos, sink.accept, self.model), access


class ShardedBuilder(ParameterBuilder):
    """Builds ShardedParameters: one store for the trained parameters, and one for the frozen ones."""

    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        settings = self.settings
        leaves = find_leaves(self.model, settings.leaf_modules)
        return module_groups(self.model, param_infos, settings.dtype, settings.persistence_threshold, leaves)

    def store(
        self, param_infos: Sequence[ParamInfo], shard: ShardLayout, plan: GroupPlan
    ) -> ShardedParameters:
        self._store = self._sharded(param_infos, shard, plan, self.settings.stored)
        return self._store

    def _sharded(
        self, members: Sequence[ParamInfo], shard: ShardLayout, plan: GroupPlan, stored: torch.dtype | None
    ) -> ShardedParameters:
        chosen = self.settings
        return ShardedParameters(members, shard, plan, chosen.device, chosen.memory, self.collectives, stored)

    def frozen(self, members: Sequence[ParamInfo]) -> FrozenShards:
        plan = self.groups(members)
        layout = self.settings.layout([t.parameter.numel() for t in members], plan.groups)
        store = self._sharded(members, ShardedLayout(layout, self.collectives.rank), plan, None)
        self._gatherer = Gatherer((self._store, store), window=self.settings.prefetch)
        return FrozenShards(store, self._gatherer)

    def attach(self, frozen: Frozen, sink: GradientSink) -> tuple[GradientHooks, Access]:
        gatherer, param_infos = self._gatherer, self._store.param_infos
        frozen.fill(lambda t: whole_values(t.parameter, self.collectives))
        for store in gatherer.stores:
            store.adopt()
        access = Access(self.collectives, self._agreement, gatherer.holding, gatherer.absorb)
        modules = find_leaves(self.model, self.settings.leaf_modules)
        leaves = LeafModules(modules, gatherer, param_infos, sink.absent)
        return GatherHooks(param_infos, sink.accept, self.model, gatherer, leaves), access


PARAMETER_BUILDERS: dict[type[Parameters], type[ParameterBuilder]] = {
    ReplicatedParameters: ReplicatedBuilder,
    ShardedParameters: ShardedBuilder,
}
