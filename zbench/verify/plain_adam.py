"""torch's own fused Adam on padded flat copies of the parameters: the optimizer of the reference.

torch's functional form, which `torch.optim.AdamW.step` calls, too: to make an optimizer object imports
torch._dynamo, which takes longer than all other imports of a server.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from zbench.engine.adam.contract import NORM_CHUNK
from zbench.spec.engine import EngineSpec, OptimizerSpec, ParamGroupSpec

_LONG_AGO = math.inf  # a step count at which both bias corrections are 1: torch has no switch for them


def group_of(name: str, groups: Mapping[str, ParamGroupSpec]) -> tuple[str | None, ParamGroupSpec | None]:
    """Return the first pattern that matches a parameter's name, with its overrides, or None twice."""
    return next(((p, g) for p, g in groups.items() if fnmatchcase(name, p)), (None, None))


@dataclass(frozen=True, slots=True)
class _Padded:
    """One parameter's master weights and Adam state, each padded with zeros to whole chunks."""

    value: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    max_exp_avg_sq: list[Tensor]  # one with `amsgrad`, else none
    step: Tensor
    settings: Mapping[str, Any]


class PlainAdam:
    """Master weights of `dtype` (float32, or float64 for the truth), each padded with zeros to whole chunks.

    The padding matters because torch's vector code rounds the last few elements of other lengths differently.
    A parameter without a gradient is left alone, step count included, as torch does.
    """

    def __init__(self, initial: Mapping[str, Tensor], spec: EngineSpec, dtype: torch.dtype) -> None:
        self._shapes = {name: value.shape for name, value in initial.items()}
        self._decoupled = spec.optimizer.name == "adamw"
        self._state: dict[str, _Padded] = {}
        for name, value in initial.items():
            settings = _settings(spec.optimizer, group_of(name, spec.param_groups)[1])
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


def _settings(optimizer: OptimizerSpec, overrides: ParamGroupSpec | None) -> dict[str, Any]:
    names = ("lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad")
    settings = {name: getattr(optimizer, name) for name in names}
    for name in names:
        value = getattr(overrides, name, None)
        if value is not None:
            settings[name] = value
    settings["beta1"], settings["beta2"] = settings.pop("betas")
    return settings
