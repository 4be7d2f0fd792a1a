"""What both kinds of parameters promise the optimizer and the model."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.engine.gradients.worlds import CPU, SIZES, WORLD, layout_for, param_infos
from tests.engine.threads import ThreadCollectives, on_ranks
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.parameters.base import Parameters, ParamInfo, write_segments
from zbench.engine.parameters.replicated import ReplicatedParameters
from zbench.engine.parameters.sharded import GroupState, ShardedParameters
from zbench.engine.shard_layout import ShardedLayout, ShardLayout, WholeLayout


def values(index: int, version: int = 0) -> Tensor:
    """Return whole values of one parameter, different for each version."""
    return torch.arange(SIZES[index]).float() + 10_000.0 * index + 100_000.0 * version


class ParametersSuite(ABC):
    """Inherited by the test of each implementation."""

    shard_types: tuple[type[WholeLayout | ShardedLayout], ...] = (ShardedLayout,)
    dtype = torch.float32

    @abstractmethod
    def make(self, infos: list[ParamInfo], shard: ShardLayout, comm: ThreadCollectives) -> Parameters: ...

    @abstractmethod
    def whole(self, parameters: Parameters, info: ParamInfo) -> Tensor:
        """Return what a forward would see."""

    def on_each(self, body: Callable[[Parameters, list[ParamInfo]], None]) -> None:
        for shard_type in self.shard_types:

            def one(comm: ThreadCollectives, kind: type[WholeLayout | ShardedLayout] = shard_type) -> None:
                infos = param_infos()
                parameters = self.make(infos, kind(layout_for(kind), comm.rank), comm)
                self.write(parameters, infos, 0)
                parameters.adopt()
                body(parameters, infos)

            on_ranks(WORLD, one)

    def write(self, parameters: Parameters, infos: list[ParamInfo], version: int) -> None:
        parameters.release()
        write_segments(parameters.shard, infos, lambda t: values(t.index, version), parameters.owned)

    def test_adopted_parameters_have_the_stored_values_and_their_shapes(self) -> None:
        def body(parameters: Parameters, infos: list[ParamInfo]) -> None:
            for t in infos:
                assert torch.equal(self.whole(parameters, t).float(), values(t.index).to(self.dtype).float())

        self.on_each(body)

    def test_what_every_rank_writes_of_its_own_is_seen_whole_after_settle(self) -> None:
        def body(parameters: Parameters, infos: list[ParamInfo]) -> None:
            for version in (1, 2):
                self.write(parameters, infos, version)
                parameters.publish(parameters.shard.length // 2)
                parameters.settle()
                for t in infos:
                    expected = values(t.index, version).to(self.dtype).float()
                    assert torch.equal(self.whole(parameters, t).float(), expected)

        self.on_each(body)

    def test_own_segments_have_their_length_and_dtype(self) -> None:
        def body(parameters: Parameters, infos: list[ParamInfo]) -> None:
            for s in parameters.shard.segments:
                assert parameters.owned(s).shape == (s.length,)
                assert parameters.owned(s).dtype == self.dtype

        self.on_each(body)

    def test_it_tells_what_it_holds(self) -> None:
        held: list[int] = []
        self.on_each(lambda parameters, infos: held.append(parameters.bytes_by_category()["parameters"]))
        assert held
        assert all(count >= sum(SIZES) * self.dtype.itemsize // WORLD for count in held)


class TestReplicated(ParametersSuite):
    shard_types = (ShardedLayout, WholeLayout)

    def make(self, infos: list[ParamInfo], shard: ShardLayout, comm: ThreadCollectives) -> Parameters:
        return ReplicatedParameters(infos, shard, [self.dtype], DeviceMemory(CPU), comm)

    def whole(self, parameters: Parameters, info: ParamInfo) -> Tensor:
        return info.parameter.detach().clone()


class TestReplicatedIn16Bits(TestReplicated):
    dtype = torch.bfloat16


class TestSharded(ParametersSuite):
    resident: frozenset[int] = frozenset()

    def make(self, infos: list[ParamInfo], shard: ShardLayout, comm: ThreadCollectives) -> Parameters:
        return ShardedParameters(
            infos, shard, [self.dtype], CPU, DeviceMemory(CPU), comm, resident=self.resident
        )

    def whole(self, parameters: Parameters, info: ParamInfo) -> Tensor:
        assert isinstance(parameters, ShardedParameters)
        (group,) = [g for g in parameters.groups if any(m.info is info for m in g.members)]
        if group.is_whole:
            return info.parameter.detach().clone()
        parameters.unshard(group)
        parameters.wait_for_unshard(group)
        found = info.parameter.detach().clone()
        parameters.reshard(group)
        return found

    def test_a_resharded_parameter_refuses_to_be_read(self) -> None:
        def body(parameters: Parameters, infos: list[ParamInfo]) -> None:
            assert isinstance(parameters, ShardedParameters)
            for group in parameters.groups:
                assert group.state is GroupState.SHARDED
            for t in infos:
                with pytest.raises(Exception, match=t.name):
                    t.parameter.sum()

        self.on_each(body)


class TestShardedResident(TestSharded):
    resident = frozenset({0})

    def test_a_resharded_parameter_refuses_to_be_read(self) -> None:
        def body(parameters: Parameters, infos: list[ParamInfo]) -> None:
            for t in infos:
                assert torch.equal(t.parameter.detach(), values(t.index))  # resident: always there

        self.on_each(body)
