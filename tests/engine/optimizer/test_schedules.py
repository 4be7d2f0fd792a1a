"""What every schedule promises: the same bits, and none of them before the commit."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.engine.gradients.worlds import CPU, SIZES, gradient, kept_of, layout_for, param_infos
from zbench.engine.adam import NORM_CHUNK, NativeAdam
from zbench.engine.assembly.optimizer import make_optimizer
from zbench.engine.checkpoint.state import set_masters
from zbench.engine.gradients.norm import ChunkSums
from zbench.engine.gradients.reduced_buffers import DtypePolicy, ReducedGradientBuffer, ReductionConfig
from zbench.engine.memory.buffers import memory_layout_of
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.optimizer.schedule import AfterBackward, Schedule
from zbench.engine.optimizer.shard_optimizer import ShardOptimizer
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.parameters.replicated import ReplicatedParameters
from zbench.engine.shard_layout import ShardedLayout
from zbench.engine.speculative import SpeculationSettings, StepAssumptions, speculate
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.spec.engine import EngineSpec

GROUP: dict[str, Any] = {
    "lr": 0.01,
    "betas": (0.9, 0.99),
    "eps": 1e-8,
    "weight_decay": 0.1,
    "bias_correction": True,
    "amsgrad": False,
    "decoupled": True,
}
ALL = [True] * len(SIZES)


@dataclass
class Parts:
    """One rank's optimizer and what it updates, all of it offloaded."""

    optimizer: ShardOptimizer
    parameters: ReplicatedParameters
    reduced: ReducedGradientBuffer
    infos: list[ParamInfo]

    def bits(self) -> list[Tensor]:
        """Return copies of master weights, moments and parameters."""
        masters = [self.optimizer.masters[s.dtype_group].of(s).clone() for s in self.optimizer.shard.segments]
        moments = [buffer.cpu().clone() for buffer in self.optimizer.moments.buffers]
        return [*masters, *moments, *(t.parameter.detach().clone() for t in self.infos)]

    def deliver(self, schedule: Schedule, step: int, there: Sequence[bool] = ALL) -> None:
        """Have a backward's gradients reduced, and the schedule told of every bucket."""
        grads = [gradient(0, step, k) * on for k, on in enumerate(there)]
        for _, run in self.reduced.sums.runs():
            run.zero_()
        local = kept_of(self.reduced.shard, grads)
        for extent, run in self.reduced.sums.runs():
            run.copy_(local[extent.start : extent.stop])
        schedule.begin(last=True)
        for bucket in self.reduced.shard.layout.buckets:
            schedule.reduced(bucket, None)


def parts() -> Parts:
    """Return fresh parts, the same every time."""
    layout = layout_for(ShardedLayout, 1)
    shard = ShardedLayout(layout, 0)
    local, host = DeviceMemory(CPU), DeviceMemory(CPU, "host_")
    memories = memory_layout_of(shard, len(layout.buckets), local, host)
    comm = SingleProcessCollectives()
    infos = param_infos()
    parameters = ReplicatedParameters(infos, shard, [torch.float32], local, comm)
    policy = DtypePolicy([torch.float32], torch.float32, None)
    reduced = ReducedGradientBuffer(ReductionConfig(shard, memories, CPU, comm, comm, 0, policy))
    groups = [{**GROUP, "params": [t.parameter for t in infos]}]
    optimizer = make_optimizer(EngineSpec(), memories, parameters, reduced, groups)
    set_masters(optimizer, parameters, lambda t: torch.linspace(-1, 1, SIZES[t.index]))
    parameters.adopt()
    return Parts(optimizer, parameters, reduced, infos)


class ScheduleSuite(ABC):
    """Inherited by the test of each implementation."""

    @abstractmethod
    def make(self, made: Parts, contributed: Callable[[], Sequence[bool]]) -> Schedule: ...

    @pytest.fixture
    def made(self) -> Iterator[tuple[Parts, Schedule]]:
        self.there = ALL
        found = parts()
        schedule = self.make(found, lambda: self.there)
        yield found, schedule
        schedule.close()

    def expected(self, steps: Sequence[tuple[float, Sequence[bool]]]) -> list[Tensor]:
        """Return what plain torch.optim.AdamW leaves of each parameter."""
        weights = [torch.linspace(-1, 1, n).requires_grad_() for n in SIZES]
        plain = torch.optim.AdamW(
            weights, lr=GROUP["lr"], betas=GROUP["betas"], eps=1e-8, weight_decay=0.1, fused=True
        )
        for step, (scale, active) in enumerate(steps):
            for k, w in enumerate(weights):
                w.grad = gradient(0, step, k) * torch.tensor(scale).float() if active[k] else None
            plain.step()
        return [w.detach() for w in weights]

    def take(self, made: tuple[Parts, Schedule], steps: Sequence[tuple[float, Sequence[bool]]]) -> None:
        found, schedule = made
        for step, (scale, active) in enumerate(steps):
            self.there = active
            found.deliver(schedule, step, active)
            schedule.prepare(scale, active)
            schedule.commit()
            found.parameters.settle()

    STEPS: ClassVar[list[list[tuple[float, Sequence[bool]]]]] = [
        [(1.0, ALL), (1.0, ALL)],
        [(0.5, ALL), (1.0, ALL), (0.25, ALL)],
        [(1.0, [True, False, True]), (1.0, ALL), (0.5, [False, True, False])],
    ]

    @pytest.mark.parametrize("case", range(len(STEPS)))
    def test_steps_leave_the_values_of_adamw(self, made: tuple[Parts, Schedule], case: int) -> None:
        self.take(made, self.STEPS[case])
        for t, expected in zip(made[0].infos, self.expected(self.STEPS[case]), strict=True):
            torch.testing.assert_close(t.parameter.detach(), expected, rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("case", range(len(STEPS)))
    def test_steps_leave_the_bits_of_the_plain_schedule(
        self, made: tuple[Parts, Schedule], case: int
    ) -> None:
        self.take(made, self.STEPS[case])
        plain = parts()
        schedule = TestAfterBackward().make(plain, lambda: ALL)
        self.take((plain, schedule), self.STEPS[case])
        for mine, other in zip(made[0].bits(), plain.bits(), strict=True):
            assert torch.equal(mine, other)

    @pytest.mark.parametrize("prepared", [False, True])
    def test_a_dropped_step_leaves_every_bit(self, made: tuple[Parts, Schedule], prepared: bool) -> None:
        found, schedule = made
        self.take(made, [(1.0, ALL)])
        before = found.bits()
        found.deliver(schedule, 1)
        if prepared:
            schedule.prepare(0.5, ALL)
        schedule.drop()
        assert all(torch.equal(a, b) for a, b in zip(found.bits(), before, strict=True))
        self.take(made, [(1.0, ALL)])
        assert not torch.equal(found.bits()[0], before[0])

    def test_it_sums_the_squares_of_each_chunk(self, made: tuple[Parts, Schedule]) -> None:
        found, schedule = made
        found.deliver(schedule, 0)
        chunks = found.reduced.sums.cpu().double().square().view(-1, NORM_CHUNK).sum(1)
        torch.testing.assert_close(schedule.square_sums(), chunks)
        schedule.drop()


class TestAfterBackward(ScheduleSuite):
    def make(self, made: Parts, contributed: Callable[[], Sequence[bool]]) -> Schedule:
        adam = NativeAdam(1)
        sums = ChunkSums(made.optimizer.shard, made.optimizer.gradients, adam)
        return AfterBackward(made.optimizer, adam, made.parameters, sums.take)


class TestDoubleBuffer(ScheduleSuite):
    rollback: ClassVar[Any] = "double_buffer"

    def make(self, made: Parts, contributed: Callable[[], Sequence[bool]]) -> Schedule:
        buckets = len(made.optimizer.shard.layout.buckets)
        chosen = SpeculationSettings(512, 1, self.rollback, buckets, alone=False)
        assumptions = StepAssumptions(contributed, lambda: 1.0, True)
        return speculate(made.optimizer, NativeAdam(1), made.parameters, made.infos, assumptions, chosen)


class TestJournal(TestDoubleBuffer):
    rollback: ClassVar[Any] = "journal"
