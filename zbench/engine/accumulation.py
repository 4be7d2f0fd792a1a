"""Which backward of a step is which: three ways to know when a step's gradients are complete.

A refused call changes nothing: the gradients that are there stay, and the step can go on as the message says.
"""

from abc import ABC, abstractmethod

from zbench.engine.gradients import Pass
from zbench.errors import UsageError


class Accumulation(ABC):
    """Counts the backwards of a step. `divisor` is what the sum over them is divided by."""

    divisor = 1

    def __init__(self) -> None:
        self.count = 0

    @abstractmethod
    def next(self, last: bool | None) -> Pass:
        """Return what the backward that is about to start is; UsageError if there can be none."""

    def done(self) -> None:
        """That backward has ended well."""
        self.count += 1

    def reset(self) -> None:
        """Begin a new step."""
        self.count = 0

    def check_step(self) -> None:
        """Raise UsageError unless a step can be taken now."""
        if self.count == 0:
            raise UsageError("expected backward before step(), got none; call engine.backward(loss) first")


class MicroSteps(Accumulation):
    """`micro_steps`: every step has the same known number of backwards; gradients are averaged over them."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.divisor = steps

    def next(self, last: bool | None) -> Pass:
        if last is not None:
            raise UsageError(
                "`last` belongs to accumulation_mode: multi_backward; micro_steps counts by itself"
            )
        if self.count == self.divisor:
            raise UsageError(
                f"expected step() after {self.divisor} backwards (gradient_accumulation_steps), got another"
                " backward; call engine.step() first"
            )
        return Pass(first=self.count == 0, last=self.count == self.divisor - 1)

    def check_step(self) -> None:
        if self.count < self.divisor:
            raise UsageError(
                f"expected {self.divisor} backwards (gradient_accumulation_steps) before step(),"
                f" got {self.count}; call engine.backward(loss) for every micro-batch first"
            )


class MultiBackward(Accumulation):
    """`multi_backward`: the caller marks the last backward of each step; gradients are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.complete = False
        self._marked = False

    def next(self, last: bool | None) -> Pass:
        if self.complete:
            raise UsageError(
                "expected step() after the backward that was marked last, got another backward;"
                " call engine.step() first, or mark a later one with last=True"
            )
        self._marked = bool(last)
        return Pass(first=self.count == 0, last=self._marked)

    def done(self) -> None:
        super().done()
        self.complete = self._marked

    def reset(self) -> None:
        super().reset()
        self.complete = False

    def check_step(self) -> None:
        super().check_step()
        if not self.complete:
            raise UsageError(
                f"expected one backward marked last before step(), got {self.count} without the mark;"
                " pass last=True to the step's last engine.backward"
            )


class Unmanaged(Accumulation):
    """`unmanaged`: any number of backwards, the boundary is known only at `step()`; gradients are summed."""

    def next(self, last: bool | None) -> Pass:
        if last is not None:
            raise UsageError(
                "`last` belongs to accumulation_mode: multi_backward; unmanaged ends a step at step()"
            )
        return Pass(first=self.count == 0, last=None)
