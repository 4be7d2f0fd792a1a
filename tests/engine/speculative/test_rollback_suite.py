"""Both memories of speculative updates keep the protocol of rollbacks."""

from collections.abc import Sequence

from torch import Tensor

from zbench.engine.speculative.rollback import DoubleBuffer, Journal, Rollback, RollbackTarget
from zbench.testing.rollback import RollbackSuite


class TestDoubleBuffer(RollbackSuite):
    def make(self, target: RollbackTarget, views: Sequence[Tensor]) -> Rollback:
        return DoubleBuffer([target], [])


class TestJournal(RollbackSuite):
    def make(self, target: RollbackTarget, views: Sequence[Tensor]) -> Rollback:
        return Journal([target], views)
