"""The suite of rollbacks: whether a `Rollback` changes nothing before a commit, and everything at it."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.speculative.rollback import Rollback, RollbackTarget

SIZES = (96, 33)


class RollbackSuite:
    """Conformance tests. A subclass says how a rollback is made."""

    def make(self, target: RollbackTarget, views: Sequence[Tensor]) -> Rollback:
        """Return a rollback of the buffers of `target`, of which an update may write `views`."""
        raise NotImplementedError

    @pytest.fixture
    def target(self) -> RollbackTarget:
        """Return a holder of two buffers with the values 1, 2, 3, ..."""
        buffers = [torch.arange(1.0, size + 1) for size in SIZES]
        return RollbackTarget(
            SimpleNamespace(memory=DeviceMemory(torch.device("cpu")), buffers=buffers), "second_copies"
        )

    def test_the_state_is_the_same_until_the_commit_and_new_from_then_on(
        self, target: RollbackTarget
    ) -> None:
        for first, last in ((0, 96), (8, 40)):
            before = [buffer.clone() for buffer in target.holder.buffers]
            view = target.holder.buffers[0][first:last]
            rollback = self.make(target, [view])
            other = rollback.other(view)
            other.copy_(view * 10)
            assert all(map(torch.equal, target.holder.buffers, before)), "a rollback forgets the update"
            for buffer in target.holder.buffers:
                rollback.keep(buffer)
            other.copy_(view * 10)
            rollback.commit([view])
            before[0][first:last] *= 10
            assert all(map(torch.equal, target.holder.buffers, before))

    def test_each_of_many_commits_takes_the_last_update(self, target: RollbackTarget) -> None:
        rollback = self.make(target, target.holder.buffers)
        for factor in (2.0, 3.0, 5.0):
            views = list(target.holder.buffers)
            for view in views:
                rollback.other(view).copy_(view * 7)  # a speculation that is discarded
                rollback.other(view).copy_(view * factor)
            rollback.commit(views)
        for buffer, size in zip(target.holder.buffers, SIZES, strict=True):
            assert torch.equal(buffer, torch.arange(1.0, size + 1) * 30)

    def test_a_view_of_other_memory_has_no_second_copy(self, target: RollbackTarget) -> None:
        elsewhere = torch.ones(8)
        assert self.make(target, target.holder.buffers).other(elsewhere) is elsewhere

    def test_second_copies_are_counted_under_their_category(self, target: RollbackTarget) -> None:
        held = self.make(target, target.holder.buffers).bytes_by_category()
        assert held.keys() == {"second_copies"}
        assert held["second_copies"] >= 4 * sum(SIZES)
