"""Calls when a parameter is read, and when the gradient of a tensor arrives."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class ReadParameters(dict[str, nn.Parameter | None]):
    """A module's parameters by name; `read` is called before a parameter is returned."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter | None], read: Callable[[nn.Parameter], None]
    ) -> None:
        super().__init__(parameters)
        self._read = read

    def __getitem__(self, name: str) -> nn.Parameter | None:
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._read(parameter)
        return parameter


class _Crossing(torch.autograd.Function):
    """Calls a function when the gradient of `x` arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Callable[[], None]) -> Tensor:
        """Return x."""
        ctx.call = call
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient on."""
        with torch.no_grad():
            ctx.call()
        return gradients[0], None


def crossing(x: Tensor, call: Callable[[], None]) -> Tensor:
    """Return x, whose gradient calls `call` when it arrives."""
    crossed: Tensor = _Crossing.apply(x, call) if x.requires_grad else x  # type: ignore[no-untyped-call]
    return crossed
