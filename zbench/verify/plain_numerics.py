"""The arithmetic of the reference after backward: sums, norm, clipping factor, loss scale, Adam.

Written without the engine's code, so that a mistake there cannot hide here too. The one exception is the
canonical norm, whose chunk sums are the contract itself (`zbench.engine.adam.contract`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.adam import adam

from zbench.engine.adam.contract import NORM_CHUNK, plain_square_sums
from zbench.spec.engine import EngineSpec, OptimizerSpec, ParamGroupSpec

Gradients = dict[str, Tensor | None]
_LONG_AGO = math.inf  # a step count at which both bias corrections are 1: torch has no switch for them


class GradientSums:
    """Adds gradients in float32 (float64 in the exact run) and keeps them in `grad_accum_dtype` between
    micro-batches."""

    def __init__(self, spec: EngineSpec, *, ranks: int, several: bool, exact: bool) -> None:
        wide = torch.float64 if exact else torch.float32
        self._wide = wide
        self._kept = torch_dtype(spec.grad_accum_dtype) if several and not exact else wide
        sent = spec.communication_dtype if ranks > 1 and not exact else None
        self._sent = torch_dtype(sent) if sent else None

    def add_micro_batch(self, total: Gradients, gradients: Gradients) -> None:
        """Add one micro-batch's gradients to `total`, in place."""
        for name, gradient in gradients.items():
            before = total.setdefault(name, None)
            if gradient is not None:
                wide = gradient.to(self._wide)
                total[name] = (wide if before is None else before.to(self._wide) + wide).to(self._kept)

    def add_rank(self, total: Gradients, gradients: Gradients) -> None:
        """Add one rank's gradients, rounded to `communication_dtype`, to `total`, in place."""
        for name, gradient in gradients.items():
            before = total.setdefault(name, None)
            if gradient is not None:
                sent = gradient.to(self._sent or gradient.dtype).to(self._wide)
                total[name] = sent if before is None else before + sent

    def add_group(self, total: Gradients, gradients: Gradients) -> None:
        """Add the sums of a group of ranks to `total`, in place."""
        for name, gradient in gradients.items():
            before = total.setdefault(name, None)
            if gradient is not None:
                total[name] = gradient if before is None else before + gradient


class RankOrder:
    """`total`: the gradients of all ranks, added within groups of `size` ranks and then over groups."""

    def __init__(self, sums: GradientSums, size: int) -> None:
        self.total: Gradients = {}
        self._sums, self._size, self._count = sums, size, 0
        self._group: Gradients = {}

    def add(self, gradients: Gradients) -> None:
        """Add those of the next rank."""
        self._sums.add_rank(self._group, gradients)
        self._count += 1
        if self._count % self._size == 0:
            self._sums.add_group(self.total, self._group)
            self._group = {}


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
            self.scale = max(self.scale / 2, 1.0)
            self._good_steps = 0
            return False
        self._good_steps += 1
        if self._good_steps == self._window:
            self.scale = self.scale * 2
            self._good_steps = 0
        return True


def clipping_factor(norm: float, max_norm: float) -> float:
    """Return the factor of `torch.nn.utils.clip_grad_norm_` for this norm; 1 if `max_norm` is 0."""
    if max_norm == 0:
        return 1.0
    return norm if math.isnan(norm) else min(1.0, max_norm / (norm + 1e-6))


def canonical_square_sum(gradients: Gradients) -> float:
    """Return the float64 sums of squares of all chunks, added exactly and rounded once."""
    flat = [g.reshape(-1) for g in gradients.values() if g is not None]
    return math.fsum(total for g in flat for total in plain_square_sums(g).tolist())


def square_sum(gradients: Gradients) -> float:
    """Return the sum of squares in float64, where its last bits decide nothing."""
    present = [g for g in gradients.values() if g is not None]
    return math.fsum(float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2 for g in present)


def torch_norm(gradients: Gradients) -> float:
    """Return the norm as `clip_grad_norm_` takes it: in float32 on a CPU it is 1e-3 off for 3e7 elements."""
    return float(torch.nn.utils.get_total_norm([g for g in gradients.values() if g is not None]))


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of this name."""
    return cast(torch.dtype, getattr(torch, name))


def group_named(name: str, groups: Mapping[str, ParamGroupSpec]) -> tuple[str | None, ParamGroupSpec | None]:
    """Return the first pattern that matches a parameter's name, and its overrides; None where none does."""
    matching = ((pattern, group) for pattern, group in groups.items() if fnmatchcase(name, pattern))
    return next(matching, (None, None))


@dataclass(slots=True)
class _Padded:
    """One parameter's master weights and Adam state, each padded with zeros to whole chunks."""

    value: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    max_exp_avg_sq: list[Tensor]  # one with `amsgrad`, else none
    step: Tensor
    settings: Mapping[str, Any]
    updated: bool = False


class PlainAdam:
    """torch's own fused Adam on padded flat copies of the parameters.

    It is called in its functional form, as `torch.optim.AdamW.step` calls it: to make an optimizer object
    imports torch._dynamo, which takes longer than all other imports of a server.

    Master weights of `dtype` (float32, or float64 for the truth), each padded with zeros to whole chunks.

    The padding matters because torch's vector code rounds the last few elements of other lengths differently.
    A parameter without a gradient is left alone, step count included, as torch does.
    """

    def __init__(self, initial: Mapping[str, Tensor], spec: EngineSpec, dtype: torch.dtype) -> None:
        self._shapes = {name: value.shape for name, value in initial.items()}
        self._decoupled = spec.optimizer.name == "adamw"
        self._state: dict[str, _Padded] = {}
        for name, value in initial.items():
            settings = settings_of(spec.optimizer, group_named(name, spec.param_groups)[1])
            first_step = 0.0 if settings.pop("bias_correction") else _LONG_AGO
            flat = _padded(value.detach(), dtype)
            mean, square, *largest = (torch.zeros_like(flat) for _ in range(2 + settings["amsgrad"]))
            self._state[name] = _Padded(flat, mean, square, largest, torch.tensor(first_step), settings)
        exact = dtype == torch.float64 or spec.optimizer.moments_dtype == "float32"
        self._moments_dtype = None if exact else torch.bfloat16

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor | None], scale: float) -> None:
        """Apply one update with `gradients` (any float dtype, the parameters' shapes), each multiplied by
        `scale`."""
        for name, one in self._state.items():
            gradient = gradients[name]
            if gradient is None:
                continue
            one.updated = True
            scaled = _padded(gradient, one.value.dtype).mul_(scale)
            adam(
                [one.value], [scaled], [one.exp_avg], [one.exp_avg_sq], one.max_exp_avg_sq, [one.step],
                fused=True, decoupled_weight_decay=self._decoupled, maximize=False, **one.settings,
            )  # fmt: skip
        if self._moments_dtype is not None:
            self._round_moments(self._moments_dtype)

    def values(self) -> dict[str, Tensor]:
        """Return views of the master weights, in the parameters' shapes."""
        return {name: self._cut(name, one.value) for name, one in self._state.items()}

    def first_moments(self) -> dict[str, Tensor]:
        """Return views of `exp_avg`, in the parameters' shapes."""
        return {name: self._cut(name, one.exp_avg) for name, one in self._state.items()}

    def gradient_sizes(self) -> dict[str, Tensor]:
        """Return the roots of `exp_avg_sq` in float32, in the parameters' shapes."""
        return {name: self._cut(name, one.exp_avg_sq).sqrt().float() for name, one in self._state.items()}

    def first_gradients(self) -> dict[str, Tensor]:
        """Return what the first update took as each gradient (with the decay of `adam`), where it had one."""
        return {
            name: self._cut(name, one.exp_avg) / (1 - one.settings["beta1"])
            for name, one in self._state.items()
            if one.updated
        }

    def _cut(self, name: str, flat: Tensor) -> Tensor:
        shape = self._shapes[name]
        return flat.detach()[: shape.numel()].view(shape)

    def _round_moments(self, dtype: torch.dtype) -> None:
        """Keep what moments stored in a shorter dtype would keep (nearest rounding)."""
        for one in self._state.values():
            for value in (one.exp_avg, one.exp_avg_sq, *one.max_exp_avg_sq):
                value.copy_(value.to(dtype))


def _padded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a new flat CPU tensor that holds `value` and zeros up to a whole number of chunks."""
    flat = torch.zeros(-(-value.numel() // NORM_CHUNK) * NORM_CHUNK, dtype=dtype)
    flat[: value.numel()].copy_(value.reshape(-1))
    return flat


def settings_of(optimizer: OptimizerSpec, overrides: ParamGroupSpec | None) -> dict[str, Any]:
    """Return Adam's settings under the names that `torch.optim.adam.adam` has for them."""
    names = ("lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad")
    settings = {}
    for name in names:
        override = getattr(overrides, name, None)
        settings[name] = getattr(optimizer, name) if override is None else override
    settings["beta1"], settings["beta2"] = settings.pop("betas")
    return settings
