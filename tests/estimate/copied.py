"""Models whose layers are copies of one another, or whose parameters are in a list."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 16


class _Mean(nn.Module):
    """The mean square of what `net` returns."""

    net: nn.Module

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        """Return sequences of vectors."""
        return (torch.randn(batch_size, length, WIDTH, generator=generator),)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        out: Tensor = self.net(x)
        return out.square().mean()


class Cloned(_Mean):
    """An encoder of torch's, which makes its layers with copy.deepcopy."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.net = nn.TransformerEncoder(layer, 2)


class Copied(_Mean):
    """Three layers with buffers and a frozen bias; `is_copied`: copies of one, else each made anew."""

    def __init__(self, is_copied: bool = True) -> None:
        super().__init__()
        layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        layer[0].bias.requires_grad_(False)
        layers = [self._another(layer, is_copied) for _ in range(3)]
        self.net = nn.Sequential(nn.Flatten(0, 1), *layers)

    def _another(self, layer: nn.Sequential, is_copied: bool) -> nn.Module:
        if is_copied:
            return copy.deepcopy(layer)
        made = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        made[0].bias.requires_grad_(False)
        return made


class Listed(_Mean):
    """Three products; the weights are parameters of `place`: a list, a dict, or the module itself."""

    def __init__(self, place: str) -> None:
        super().__init__()
        weights = [nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(3)]
        if place == "list":
            self.weights: Any = nn.ParameterList(weights)
        elif place == "dict":
            self.weights = nn.ParameterDict({str(k): weight for k, weight in enumerate(weights)})
        else:
            for k, weight in enumerate(weights):
                self.register_parameter(f"weight_{k}", weight)
        self._place = place

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        for k in range(3):
            name = str(k) if self._place == "dict" else k
            x = x @ (getattr(self, f"weight_{k}") if self._place == "self" else self.weights[name])
        return x.square().mean()
