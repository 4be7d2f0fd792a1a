"""Each accumulation mode knows a step's boundary, and refuses calls out of turn without losing anything."""

from abc import ABC, abstractmethod

import pytest

from zbench.engine.policies import (
    AccumulationBoundary,
    AccumulationPolicy,
    MicroSteps,
    MultiBackward,
    Unmanaged,
)
from zbench.errors import UsageError


def backward(mode: AccumulationPolicy, last: bool | None = None) -> AccumulationBoundary:
    """Run one backward through a mode."""
    this = mode.next(last)
    mode.done()
    return this


class AccumulationSuite(ABC):
    """What every policy promises; inherited by the test of each implementation."""

    @abstractmethod
    def make(self) -> AccumulationPolicy: ...

    @abstractmethod
    def whole_step(self, mode: AccumulationPolicy) -> list[AccumulationBoundary]:
        """Run the backwards of one step, three of them."""

    def test_only_the_first_backward_of_each_step_is_the_first(self) -> None:
        mode = self.make()
        for _ in range(2):
            assert [b.first for b in self.whole_step(mode)] == [True, False, False]
            mode.check_step()
            mode.reset()

    def test_no_backward_but_the_final_one_is_called_the_last(self) -> None:
        boundaries = self.whole_step(self.make())
        assert not any(b.last for b in boundaries[:-1])
        assert boundaries[-1].last in (True, None)

    def test_a_step_needs_a_backward(self) -> None:
        mode = self.make()
        with pytest.raises(UsageError, match=r"engine\.backward"):
            mode.check_step()
        self.whole_step(mode)
        mode.check_step()
        mode.reset()
        with pytest.raises(UsageError, match=r"engine\.backward"):
            mode.check_step()

    def test_a_backward_that_failed_does_not_count(self) -> None:
        mode = self.make()
        before = mode.next(None)
        assert mode.next(None) == before
        assert mode.count == 0

    def test_sums_are_divided_by_at_least_one(self) -> None:
        assert self.make().divisor >= 1


class TestMicroSteps(AccumulationSuite):
    def make(self) -> AccumulationPolicy:
        return MicroSteps(3)

    def whole_step(self, mode: AccumulationPolicy) -> list[AccumulationBoundary]:
        return [backward(mode) for _ in range(3)]


class TestMultiBackward(AccumulationSuite):
    def make(self) -> AccumulationPolicy:
        return MultiBackward()

    def whole_step(self, mode: AccumulationPolicy) -> list[AccumulationBoundary]:
        return [backward(mode, last) for last in (None, False, True)]


class TestUnmanaged(AccumulationSuite):
    def make(self) -> AccumulationPolicy:
        return Unmanaged()

    def whole_step(self, mode: AccumulationPolicy) -> list[AccumulationBoundary]:
        return [backward(mode) for _ in range(3)]


def test_micro_steps_count_by_themselves() -> None:
    mode = MicroSteps(3)
    for _ in range(2):
        assert [backward(mode) for _ in range(3)] == [
            AccumulationBoundary(True, False),
            AccumulationBoundary(False, False),
            AccumulationBoundary(False, True),
        ]
        mode.check_step()
        mode.reset()


def test_micro_steps_refuse_an_early_step_and_a_late_backward() -> None:
    mode = MicroSteps(2)
    with pytest.raises(UsageError, match=r"expected 2 backwards .* got 0; call engine.backward"):
        mode.check_step()
    backward(mode)
    with pytest.raises(UsageError, match="got 1"):
        mode.check_step()
    backward(mode)
    with pytest.raises(UsageError, match=r"call engine\.step"):
        mode.next(None)
    mode.check_step()
    with pytest.raises(UsageError, match="multi_backward"):
        MicroSteps(2).next(True)


def test_multi_backward_ends_where_the_caller_marks_it() -> None:
    mode = MultiBackward()
    assert backward(mode) == AccumulationBoundary(True, False)
    with pytest.raises(UsageError, match="pass last=True"):
        mode.check_step()
    assert backward(mode, last=True) == AccumulationBoundary(False, True)
    with pytest.raises(UsageError, match=r"call engine\.step"):
        mode.next(True)
    mode.check_step()
    mode.reset()
    assert backward(mode, last=True) == AccumulationBoundary(True, True)


def test_a_backward_that_failed_does_not_count_as_the_last() -> None:
    mode = MultiBackward()
    mode.next(True)  # and no done(): it raised
    assert mode.next(True) == AccumulationBoundary(True, True)


def test_unmanaged_never_knows_before_the_step() -> None:
    mode = Unmanaged()
    with pytest.raises(UsageError, match="expected backward before step"):
        mode.check_step()
    assert [backward(mode) for _ in range(2)] == [
        AccumulationBoundary(True, None),
        AccumulationBoundary(False, None),
    ]
    mode.check_step()
    with pytest.raises(UsageError, match="multi_backward"):
        mode.next(False)
