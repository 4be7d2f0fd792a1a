"""What both kinds of gradients promise, with every kind of bucket buffers that they are given."""

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.engine.far_memory.copies import Copies
from tests.engine.far_memory.memory import FarMemory
from tests.engine.gradients.worlds import (
    SIZES,
    WORLD,
    config_for,
    gradient,
    kept_of,
    layout_for,
    param_infos,
    summed,
)
from tests.engine.threads import ThreadCollectives, on_ranks
from zbench.engine.gradients.accumulators import BucketBufferFactory
from zbench.engine.gradients.reduced_buffers import ReducedGradientBuffer, WholeReducedGradientBuffer
from zbench.engine.gradients.reducer import BucketReducer
from zbench.engine.gradients.sinks import Gradients, ReplicatedGradients, ShardedGradients
from zbench.engine.policies import AccumulationBoundary
from zbench.engine.shard_layout import ShardedLayout, WholeLayout
from zbench.errors import UsageError

LOSS = torch.zeros(())
BUCKETS = len(layout_for(ShardedLayout).buckets)


class GradientsSuite:
    """Inherited by the test of each implementation."""

    kind: type[ReplicatedGradients | ShardedGradients]
    reductions_per_backward: bool

    def on_each(
        self, body: Callable[[Gradients, ThreadCollectives], None], shard: str = "sharded", **options: object
    ) -> None:
        """Call `body` on every rank with gradients of a fresh engine."""

        def one(comm: ThreadCollectives) -> None:
            chosen = WholeLayout if shard == "whole" else ShardedLayout
            config = config_for(comm, chosen, **options)  # type: ignore[arg-type]
            buffer = (WholeReducedGradientBuffer if shard == "whole" else ReducedGradientBuffer)(config)
            reducer = BucketReducer(comm, buffer, in_flight=0)
            infos = param_infos()
            gradients = self.kind.build(reducer, infos, BucketBufferFactory(config, buffer.sums))
            body(gradients, comm)
            gradients.close()

        on_ranks(WORLD, one)

    def backward(
        self,
        gradients: Gradients,
        rank: int,
        micro: int,
        of: int | None,
        absent: Sequence[tuple[int, int]] = (),
    ) -> None:
        last = None if of is None else micro == of - 1
        gradients.begin(AccumulationBoundary(micro == 0, last), LOSS)
        for index in reversed(range(len(SIZES))):
            if (micro, index) not in absent:
                gradients.accept(index, gradient(rank, micro, index))
        gradients.finish()

    @pytest.mark.parametrize("shard", ["sharded", "whole"])
    @pytest.mark.parametrize("micros", [1, 2, 3])
    @pytest.mark.parametrize("known", [True, False])
    def test_the_sums_of_a_step_are_reduced(self, shard: str, micros: int, known: bool) -> None:
        def body(gradients: Gradients, comm: ThreadCollectives) -> None:
            reduced = gradients.reducer.reduced_gradients
            for _ in range(2):
                for micro in range(micros):
                    self.backward(gradients, comm.rank, micro, micros if known else None)
                gradients.settle()
                assert torch.equal(reduced.sums.cpu(), kept_of(reduced.shard, summed(micros)))
                assert gradients.contributed == [True] * len(SIZES)
                gradients.clear()
            count = micros if self.reductions_per_backward else 1
            assert comm.reductions == 2 * count * len(reduced.shard.layout.buckets)

        self.on_each(body, shard)

    @pytest.mark.parametrize("communication", [torch.bfloat16, torch.float32])
    def test_a_communication_dtype_that_holds_the_values_changes_nothing(
        self, communication: torch.dtype
    ) -> None:
        def body(gradients: Gradients, comm: ThreadCollectives) -> None:
            for micro in range(2):
                self.backward(gradients, comm.rank, micro, 2)
            gradients.settle()
            reduced = gradients.reducer.reduced_gradients
            assert torch.equal(reduced.sums.cpu(), kept_of(reduced.shard, summed(2)))

        self.on_each(body, communication=communication)

    def test_a_missing_gradient_counts_as_zero(self) -> None:
        absent = [(0, 1), (0, 2), (1, 2)]

        def body(gradients: Gradients, comm: ThreadCollectives) -> None:
            for micro in range(2):
                self.backward(gradients, comm.rank, micro, 2, absent)
            gradients.settle()
            reduced = gradients.reducer.reduced_gradients
            assert torch.equal(reduced.sums.cpu(), kept_of(reduced.shard, summed(2, absent=absent)))
            assert gradients.contributed == [True, True, False]

        self.on_each(body)

    def test_an_abandoned_step_leaves_nothing_behind(self) -> None:
        def body(gradients: Gradients, comm: ThreadCollectives) -> None:
            self.backward(gradients, comm.rank, 0, 2)
            gradients.begin(AccumulationBoundary(False, True), LOSS)
            gradients.accept(1, gradient(comm.rank, 7, 1))
            gradients.abandon()
            assert gradients.contributed == [False] * len(SIZES)
            self.backward(gradients, comm.rank, 0, 1)
            gradients.settle()
            reduced = gradients.reducer.reduced_gradients
            assert torch.equal(reduced.sums.cpu(), kept_of(reduced.shard, summed(1)))

        self.on_each(body)

    def test_a_second_gradient_and_one_outside_of_a_backward_are_refused(self) -> None:
        def body(gradients: Gradients, comm: ThreadCollectives) -> None:
            with pytest.raises(UsageError, match=r"engine\.backward"):
                gradients.accept(0, gradient(comm.rank, 0, 0))
            gradients.begin(AccumulationBoundary(True, True), LOSS)
            gradients.accept(0, gradient(comm.rank, 0, 0))
            with pytest.raises(UsageError, match="one gradient"):
                gradients.accept(0, gradient(comm.rank, 0, 0))

        self.on_each(body)


class TestReplicated(GradientsSuite):
    kind, reductions_per_backward = ReplicatedGradients, False


class TestSharded(GradientsSuite):
    kind, reductions_per_backward = ShardedGradients, True


class OffloadedSuite(GradientsSuite):
    """The same where sums lie in memory that only late copies reach."""

    def on_each(
        self, body: Callable[[Gradients, ThreadCollectives], None], shard: str = "sharded", **options: object
    ) -> None:
        if shard == "whole":
            pytest.skip("stage 0 offloads nothing")
        copies = Copies(seed=len(options))
        super().on_each(body, host=FarMemory(copies), offloaded=BUCKETS, **options)
        assert copies.close() == []


class TestOffloadedReplicated(OffloadedSuite):
    kind, reductions_per_backward = ReplicatedGradients, False

    @pytest.mark.parametrize("known", [True, False])
    def test_the_device_holds_no_gradient_between_two_backwards(self, known: bool) -> None:
        def body(gradients: Gradients, comm: ThreadCollectives) -> None:
            buckets = gradients.reducer.reduced_gradients.shard.layout.buckets
            for micro in range(3):
                self.backward(gradients, comm.rank, micro, 4 if known else None)
                held = gradients.bytes_by_category()
                assert held["gradients"] == 0
                assert held["host_gradients"] == 4 * sum(bucket.length for bucket in buckets)
                at_once = 3  # one that is filled, two that are copied
                assert held["buckets"] <= at_once * 4 * max(bucket.length for bucket in buckets)
            gradients.abandon()

        self.on_each(body)


class TestOffloadedSharded(OffloadedSuite):
    kind, reductions_per_backward = ShardedGradients, True
