"""The arithmetic between backward and Adam in the reference: sums, norm, clipping factor, loss scale.

Written without the engine's code, so that a mistake there cannot hide here too. The one exception is the
canonical norm, whose chunk sums are the contract itself (`zbench.engine.adam.contract`).
"""

import math

import numpy as np
import torch
from torch import Tensor

from zbench.engine.adam import NORM_CHUNK, ReferenceAdam
from zbench.spec.engine import EngineSpec

Gradients = dict[str, Tensor | None]


class GradientSums:
    """Adds gradients in float32 (float64 in the exact run) and keeps them in `grad_accum_dtype` between
    micro-batches."""

    def __init__(self, spec: EngineSpec, *, ranks: int, several: bool, exact: bool) -> None:
        wide = torch.float64 if exact else torch.float32
        self._wide = wide
        self._kept = torch_dtype(spec.grad_accum_dtype) if several and not exact else wide
        sent = spec.communication_dtype if ranks > 1 and not exact else None
        self._sent = torch_dtype(sent) if sent else None

    def add_micro_batch(self, total: Gradients, found: Gradients) -> None:
        """Add one micro-batch's gradients to `total`, in place."""
        for name, gradient in found.items():
            before = total.get(name)
            if gradient is None:
                total[name] = before
            elif before is None:
                total[name] = gradient.to(self._kept)
            else:
                total[name] = (before.to(self._wide) + gradient.to(self._wide)).to(self._kept)

    def add_rank(self, total: Gradients, found: Gradients) -> None:
        """Add one rank's gradients, rounded to `communication_dtype`, to `total`, in place."""
        for name, gradient in found.items():
            before = total.get(name)
            if gradient is None:
                total[name] = before
                continue
            sent = (gradient if self._sent is None else gradient.to(self._sent)).to(self._wide)
            total[name] = sent if before is None else before + sent


class LossScale:
    """The factor on the loss: 1, or in float16 one that halves on overflow and doubles after a window."""

    def __init__(self, spec: EngineSpec, *, exact: bool) -> None:
        self._dynamic = spec.dtype == "float16" and not exact
        self.scale = spec.initial_loss_scale if self._dynamic else 1.0
        self._window, self._good_steps = spec.loss_scale_window, 0

    def accepts(self, square_sum: float) -> bool:
        """Return whether to apply a step whose scaled gradients have this square sum; adapt the scale."""
        if not self._dynamic:
            return True
        if not math.isfinite(square_sum):
            self.scale, self._good_steps = max(self.scale / 2, 1.0), 0
            return False
        self._good_steps += 1
        if self._good_steps == self._window:
            self.scale, self._good_steps = self.scale * 2, 0
        return True


def clipping_factor(norm: float, max_norm: float) -> float:
    """Return the factor of `torch.nn.utils.clip_grad_norm_` for this norm; 1 if `max_norm` is 0."""
    if max_norm == 0:
        return 1.0
    return norm if math.isnan(norm) else min(1.0, max_norm / (norm + 1e-6))


def scaled_loss(loss: Tensor, divisor: int, scale: float) -> Tensor:
    """Return what backward starts from: the loss over `divisor` (the caller's mean), times the loss scale."""
    mean = loss if divisor == 1 else loss / divisor
    return mean if scale == 1.0 else mean * scale


def canonical_square_sum(gradients: Gradients) -> float:
    """Return the canonical float64 sum of squares, parameters in registration order."""
    parts = []
    for gradient in gradients.values():
        if gradient is not None and gradient.numel():
            part = torch.empty(-(-gradient.numel() // NORM_CHUNK), dtype=torch.float64)
            ReferenceAdam().chunk_square_sums([gradient.reshape(-1)], [part])
            parts.append(part)
    return float(np.add.accumulate(torch.cat(parts).numpy())[-1]) if parts else 0.0


def square_sum(gradients: Gradients) -> float:
    """Return the sum of squares in float64, where its last bits decide nothing."""
    found = [g for g in gradients.values() if g is not None]
    return math.fsum(float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2 for g in found)


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
