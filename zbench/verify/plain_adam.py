"""torch's own fused Adam on padded flat copies of the parameters: the optimizer of the reference."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from zbench.engine.adam.contract import NORM_CHUNK
from zbench.spec.engine import EngineSpec, OptimizerSpec, ParamGroupSpec

_LONG_AGO = 1e9  # a step count at which both bias corrections are exactly 1: torch has no switch for them


def group_of(name: str, groups: Mapping[str, ParamGroupSpec]) -> tuple[str | None, ParamGroupSpec | None]:
    """Return the first pattern that matches a parameter's name, with its overrides, or None twice."""
    return next(((p, g) for p, g in groups.items() if fnmatchcase(name, p)), (None, None))


class PlainAdam:
    """Master weights of `dtype` (float32, or float64 for the truth), each padded with zeros to whole chunks.

    The padding matters because torch's vector code rounds the last few elements of other lengths differently.
    A parameter without a gradient is left alone, step count included, as torch does.
    """

    def __init__(self, initial: Mapping[str, Tensor], spec: EngineSpec, dtype: torch.dtype) -> None:
        self._shapes = {name: value.shape for name, value in initial.items()}
        self._flat = {name: _padded(value.detach(), dtype) for name, value in initial.items()}
        grouped: dict[str | None, tuple[dict[str, Any], list[Tensor]]] = {}
        for name, flat in self._flat.items():
            pattern, overrides = group_of(name, spec.param_groups)
            settings = _settings(spec.optimizer, overrides)
            grouped.setdefault(pattern, (settings, []))[1].append(flat)
        kind = torch.optim.AdamW if spec.optimizer.name == "adamw" else torch.optim.Adam
        corrected = [settings.pop("bias_correction") for settings, _ in grouped.values()]
        groups = [{"params": tensors, **settings} for settings, tensors in grouped.values()]
        self._optimizer = kind(groups, lr=spec.optimizer.lr, fused=True)
        for group, bias_correction in zip(self._optimizer.param_groups, corrected, strict=True):
            for flat in group["params"]:
                self._optimizer.state[flat] = _fresh(flat, bias_correction, group["amsgrad"])
        exact = dtype == torch.float64 or spec.optimizer.moments_dtype == "float32"
        self._moments_dtype = None if exact else torch.bfloat16

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor | None], scale: float) -> None:
        """Apply one update with `gradients` (any float dtype, the parameters' shapes), each multiplied by
        `scale`."""
        for name, flat in self._flat.items():
            gradient = gradients[name]
            flat.grad = None if gradient is None else _padded(gradient, flat.dtype).mul_(scale)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._moments_dtype is not None:
            self._round_moments(self._moments_dtype)

    def values(self) -> dict[str, Tensor]:
        """Return views of the master weights, in the parameters' shapes."""
        return {name: self._cut(name, flat) for name, flat in self._flat.items()}

    def first_moments(self) -> dict[str, Tensor]:
        """Return views of `exp_avg`, in the parameters' shapes."""
        return {
            name: self._cut(name, self._optimizer.state[flat]["exp_avg"]) for name, flat in self._flat.items()
        }

    def _cut(self, name: str, flat: Tensor) -> Tensor:
        shape = self._shapes[name]
        return flat.detach()[: shape.numel()].view(shape)

    def _round_moments(self, dtype: torch.dtype) -> None:
        """Keep what moments stored in a shorter dtype would keep (nearest rounding)."""
        for state in self._optimizer.state.values():
            for name, value in state.items():
                if name != "step":
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
    return settings


def _fresh(flat: Tensor, bias_correction: bool, amsgrad: bool) -> dict[str, Tensor]:
    state = {"step": torch.tensor(0.0 if bias_correction else _LONG_AGO)}
    state |= {"exp_avg": torch.zeros_like(flat), "exp_avg_sq": torch.zeros_like(flat)}
    return state | ({"max_exp_avg_sq": torch.zeros_like(flat)} if amsgrad else {})
