"""Gradient accumulation, clipping and loss scaling: policies that do not depend on the ZeRO stage."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from zbench.engine.protocols import Collectives
from zbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class AccumulationBoundary:
    """Where one backward is in its step. `last` is None where only `step()` will tell."""

    first: bool
    last: bool | None


class AccumulationPolicy(ABC):
    """Counts the backwards of a step. `divisor`: what the sum of their gradients is divided by."""

    divisor = 1

    def __init__(self) -> None:
        self.count = 0
        self.discarded: str | None = None

    @abstractmethod
    def next(self, last: bool | None) -> AccumulationBoundary:
        """Return where the backward that is about to start is in the step; UsageError if it may not start."""

    def done(self) -> None:
        """Count a backward that has succeeded."""
        self.count += 1

    def reset(self) -> None:
        """Begin a new step."""
        self.count = 0
        self.discarded = None

    def discard(self, earlier: int, arrived: bool) -> None:
        """Note that a backward has failed after `earlier` backwards of its step, and that their gradients are
        gone. arrived: it had computed gradients itself, which PyTorch would add to those of the next.
        """
        own = "the gradients that it had computed" if arrived else ""
        before = f"the {earlier} before it in this step" if earlier else ""
        self.discarded = ", and ".join(filter(None, (before, own))) or None

    def check_discarded(self) -> None:
        """Raise UsageError if a backward that failed has discarded gradients that PyTorch would keep."""
        if self.discarded is not None:
            raise UsageError(
                f"the backward that failed has discarded {self.discarded}; call engine.zero_grad(), then"
                " repeat all backwards of the step"
            )

    def check_step(self) -> None:
        """Raise UsageError unless a step can be taken now."""
        if self.count == 0:
            raise UsageError("expected backward before step(), got none; call engine.backward(loss) first")


class MicroSteps(AccumulationPolicy):
    """`micro_steps`: every step has the same known number of backwards; gradients are averaged over them."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.divisor = steps

    def next(self, last: bool | None) -> AccumulationBoundary:
        if last is not None:
            raise UsageError(
                "`last` belongs to accumulation_mode: multi_backward; micro_steps counts by itself"
            )
        if self.count == self.divisor:
            raise UsageError(
                f"expected step() after {self.divisor} backwards (gradient_accumulation_steps), got another"
                " backward; call engine.step() first"
            )
        return AccumulationBoundary(first=self.count == 0, last=self.count == self.divisor - 1)

    def check_step(self) -> None:
        if self.count < self.divisor:
            raise UsageError(
                f"expected {self.divisor} backwards (gradient_accumulation_steps) before step(),"
                f" got {self.count}; call engine.backward(loss) for every micro-batch first"
            )


class MultiBackward(AccumulationPolicy):
    """`multi_backward`: the caller marks the last backward of each step; gradients are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.complete = False
        self._marked = False

    def next(self, last: bool | None) -> AccumulationBoundary:
        if self.complete:
            raise UsageError(
                "expected step() after the backward that was marked last, got another backward;"
                " call engine.step() first, or mark a later one with last=True"
            )
        self._marked = bool(last)
        return AccumulationBoundary(first=self.count == 0, last=self._marked)

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


class Unmanaged(AccumulationPolicy):
    """`unmanaged`: any number of backwards, the boundary is known only at `step()`; gradients are summed."""

    def next(self, last: bool | None) -> AccumulationBoundary:
        if last is not None:
            raise UsageError(
                "`last` belongs to accumulation_mode: multi_backward; unmanaged ends a step at step()"
            )
        return AccumulationBoundary(first=self.count == 0, last=None)


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Return min(1, max_norm / (norm + 1e-6)) as torch's `clip_grad_norm_` does; NaN for a NaN norm."""
    return norm if math.isnan(norm) else min(1.0, max_norm / (norm + 1e-6))


@dataclass(frozen=True, slots=True)
class Clip:
    """Scales gradients down to a global L2 norm of at most `max_norm`; infinity leaves them as they are."""

    max_norm: float = math.inf

    @property
    def needs_norm(self) -> bool:
        """Whether `coefficient` depends on the norm."""
        return self.max_norm < math.inf

    def coefficient(self, norm: float) -> float:
        """Return the factor for gradients of this global norm."""
        return clip_coefficient(norm, self.max_norm) if self.needs_norm else 1.0


class LossScaling:
    """`scale` multiplies the loss; `judge` decides once a step whether the gradients may be used. This one
    serves float32 and bfloat16: it scales nothing and takes every step, as torch does.
    """

    scale: float = 1.0
    needs_norm = False
    good_steps = 0

    def resume(self, scale: float, good_steps: int) -> None:
        """Continue from a saved state."""

    def judge(self, square_sum: float | None) -> bool:
        """Return whether to take the step, from the square sum of the scaled gradients; adapt the scale."""
        return True


LARGEST_SCALE = 2.0**127
"""What float32 holds: torch's GradScaler does not grow beyond it either."""


class DynamicScaling(LossScaling):
    """float16: halve the scale, to 1 at least, and skip the step on overflow, double it after `window` good
    steps, as far as float32 goes.
    """

    needs_norm = True

    def __init__(self, scale: float, window: int) -> None:
        self.scale, self.window = scale, window
        self.good_steps = 0

    def resume(self, scale: float, good_steps: int) -> None:
        self.scale, self.good_steps = scale, good_steps

    def judge(self, square_sum: float | None) -> bool:
        assert square_sum is not None
        if not math.isfinite(square_sum):
            self.scale = max(self.scale / 2, 1.0)
            self.good_steps = 0
            return False
        self.good_steps += 1
        if self.good_steps == self.window:
            self.scale = min(self.scale * 2, LARGEST_SCALE)
            self.good_steps = 0
        return True


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a step. `close`: ends the transport."""

    accumulation: AccumulationPolicy
    clip: Clip
    scaling: LossScaling
    collectives: Collectives
    close: Callable[[], None]

    def factor(self, loss_scale: float, clip: float) -> float:
        """Return the one factor (in double) that averages, unscales and clips summed gradients."""
        return clip / (self.collectives.world_size * self.accumulation.divisor * loss_scale)
