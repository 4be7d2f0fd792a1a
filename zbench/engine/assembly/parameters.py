"""Builds one column of the stage table: how parameters are grouped, stored, and attached to the model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zbench.engine.adam import NORM_CHUNK
from zbench.engine.memory.kinds import Memory
from zbench.engine.parameters.deferred import whole_values
from zbench.engine.parameters.frozen import Frozen, FrozenInPlace, FrozenShards
from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.grouping import GroupPlan, module_groups, replicated_groups
from zbench.engine.parameters.hooks import GatherHooks, GradientHooks
from zbench.engine.parameters.replicated import Parameters, ParamInfo, ReplicatedParameters, write_segments
from zbench.engine.parameters.sharded import ShardedParameters
from zbench.engine.partition import GatherGroup, Layout
from zbench.engine.protocols import Collectives
from zbench.engine.shard_layout import ShardedLayout, ShardLayout

Accept = Callable[[int, Tensor], None]
"""Takes the gradient of the parameter of that index."""


@dataclass(frozen=True, slots=True)
class ParameterSettings:
    """What grouping, storing and gathering depend on.

    dtype: of parameters that the model has in float32. memory: of what is stored between steps.
    standalone_threshold: elements from which a replicated parameter has a group of its own.
    persistence_threshold: elements up to which a sharded parameter stays gathered. prefetch: elements that
    are gathered ahead. layout: lays parameters of these sizes and groups out.
    """

    dtype: torch.dtype
    device: torch.device
    memory: Memory
    standalone_threshold: float
    persistence_threshold: int
    prefetch: int
    layout: Callable[[Sequence[int], Sequence[GatherGroup]], Layout]


class ParameterBuilder(ABC):
    """Builds the parameters of one model, in the order of its methods."""

    def __init__(self, model: nn.Module, settings: ParameterSettings, collectives: Collectives) -> None:
        self.model, self.settings, self.collectives = model, settings, collectives

    @abstractmethod
    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        """Return which parameters are stored and gathered together."""

    @abstractmethod
    def store(self, shard: ShardLayout, plan: GroupPlan) -> Parameters:
        """Return the memory of the parameters."""

    @abstractmethod
    def attach(
        self, param_infos: Sequence[ParamInfo], frozen: Sequence[ParamInfo], accept: Accept
    ) -> tuple[Frozen, GradientHooks]:
        """Register the hooks on the model; return them and the parameters that are not trained."""


class ReplicatedBuilder(ParameterBuilder):
    """Builds ReplicatedParameters."""

    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        alignment = self.collectives.world_size * NORM_CHUNK
        return replicated_groups(
            param_infos, self.settings.dtype, alignment, self.settings.standalone_threshold
        )

    def store(self, shard: ShardLayout, plan: GroupPlan) -> ReplicatedParameters:
        return ReplicatedParameters(shard, plan.dtypes, self.settings.memory, self.collectives)

    def attach(
        self, param_infos: Sequence[ParamInfo], frozen: Sequence[ParamInfo], accept: Accept
    ) -> tuple[Frozen, GradientHooks]:
        return FrozenInPlace(frozen), GradientHooks(param_infos, accept)


class ShardedBuilder(ParameterBuilder):
    """Builds ShardedParameters: one store for the trained parameters, and one for the frozen ones."""

    def groups(self, param_infos: Sequence[ParamInfo]) -> GroupPlan:
        settings = self.settings
        return module_groups(self.model, param_infos, settings.dtype, settings.persistence_threshold)

    def store(self, shard: ShardLayout, plan: GroupPlan) -> ShardedParameters:
        settings = self.settings
        self._store = ShardedParameters(
            shard, plan.dtypes, settings.device, settings.memory, self.collectives, resident=plan.resident
        )
        return self._store

    def attach(
        self, param_infos: Sequence[ParamInfo], frozen: Sequence[ParamInfo], accept: Accept
    ) -> tuple[Frozen, GradientHooks]:
        trained, store = self._store, self._frozen_store(frozen)
        gatherer = Gatherer([trained, store], window=self.settings.prefetch)
        hooks = GatherHooks(param_infos, accept, self.model, gatherer)
        return FrozenShards(frozen, store, gatherer), hooks

    def _frozen_store(self, frozen: Sequence[ParamInfo]) -> ShardedParameters:
        plan, settings = self.groups(frozen), self.settings
        layout = settings.layout([t.parameter.numel() for t in frozen], plan.groups)
        shard = ShardedLayout(layout, self.collectives.rank)
        store = ShardedParameters(
            shard, plan.dtypes, settings.device, settings.memory, self.collectives, resident=plan.resident
        )
        write_segments(shard, frozen, lambda t: whole_values(t.parameter, self.collectives), store.owned)
        store.adopt(frozen)
        return store


PARAMETER_BUILDERS: dict[type[Parameters], type[ParameterBuilder]] = {
    ReplicatedParameters: ReplicatedBuilder,
    ShardedParameters: ShardedBuilder,
}
