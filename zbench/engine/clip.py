"""Gradient clipping by the canonical global norm: pure functions of float64 partial sums, and one scale
factor.

The canonical norm: square sums of 256-element chunks of every parameter (`adam.contract`), added one after
the other in float64, parameters in registration order. It has the same bits for every stage, bucket size,
home and world size.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor


def sum_in_order(chunk_sums: Tensor) -> float:
    """Return the sum of `chunk_sums` [n] (float64, CPU), added strictly from first to last."""
    values = chunk_sums.numpy()
    return float(np.add.accumulate(values)[-1]) if values.size else 0.0


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Return min(1, max_norm / (norm + 1e-6)) as torch's `clip_grad_norm_` does; NaN for a NaN norm."""
    return norm if math.isnan(norm) else min(1.0, max_norm / (norm + 1e-6))


def gradient_scale(*, world_size: int, accumulation: int, loss_scale: float, clip: float) -> float:
    """Return the one factor that turns summed gradients into averaged, unscaled, clipped ones (in double)."""
    return clip / (world_size * accumulation * loss_scale)


class Clip(Protocol):
    """Yields the clipping factor of a step."""

    @property
    def needs_norm(self) -> bool:
        """Whether `coefficient` looks at the norm."""
        ...

    def coefficient(self, norm: float) -> float:
        """Return the factor for gradients of this global norm."""
        ...


@dataclass(frozen=True, slots=True)
class NoClip:
    """Leaves gradients as they are."""

    needs_norm: bool = False

    def coefficient(self, norm: float) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class ClipByGlobalNorm:
    """Scales gradients down to a global L2 norm of at most `max_norm`."""

    max_norm: float
    needs_norm: bool = True

    def coefficient(self, norm: float) -> float:
        return clip_coefficient(norm, self.max_norm)
