"""Loss scaling: a factor that keeps float16 gradients in range, and what to do when it was too large."""

import math
from typing import Protocol


class LossScaling(Protocol):
    """`scale` multiplies the loss; `judge` tells after each step whether its gradients may be used."""

    scale: float
    needs_norm: bool
    good_steps: int

    def resume(self, scale: float, good_steps: int) -> None:
        """Go on from a saved state."""
        ...

    def judge(self, square_sum: float | None) -> bool:
        """Return whether to take the step, from the square sum of the scaled gradients; adapt the scale."""
        ...


class NoScaling:
    """float32 and bfloat16: every step is taken, as torch does."""

    scale = 1.0
    needs_norm = False
    good_steps = 0

    def resume(self, scale: float, good_steps: int) -> None:
        return

    def judge(self, square_sum: float | None) -> bool:
        return True


class DynamicScaling:
    """float16: halve the scale and skip the step on overflow, double it after `window` good steps."""

    needs_norm = True

    def __init__(self, scale: float, window: int) -> None:
        self.scale, self.window = scale, window
        self.good_steps = 0

    def resume(self, scale: float, good_steps: int) -> None:
        self.scale, self.good_steps = scale, good_steps

    def judge(self, square_sum: float | None) -> bool:
        assert square_sum is not None
        if not math.isfinite(square_sum):
            self.scale, self.good_steps = max(self.scale / 2, 1.0), 0
            return False
        self.good_steps += 1
        if self.good_steps == self.window:
            self.scale, self.good_steps = self.scale * 2, 0
        return True
