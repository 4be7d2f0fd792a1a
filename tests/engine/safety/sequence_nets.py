"""The model that random sequences train, and losses of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]


LAYERS = ("first", "second", "sometimes", "last", "norm")


class Net(nn.Module):
    """LAYERS, of which a weight is tied and one is used at times. `dtype`: what it computes in."""

    def __init__(self, dtype: torch.dtype, *, grown: bool = False) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.first, self.second = nn.Linear(13, 24), nn.Linear(24, 24)
        self.sometimes, self.last = nn.Linear(24, 24), nn.Linear(24, 7)
        self.norm = nn.LayerNorm(24)
        self.register_buffer("seen", torch.zeros(()))
        self.adapter: nn.Module = adapter() if grown else nn.Identity()
        self.dtype = dtype

    def forward(self, x: Tensor, use: bool = True) -> Tensor:
        h = self.norm(torch.tanh(self.first(x.to(self.dtype))))
        h = self.sometimes(h) if use else h
        return self.last(self.adapter(torch.tanh(self.second(h))) + functional.linear(h, self.second.weight))

    def energy(self, x: Tensor) -> Tensor:
        """Return another loss, not by way of forward."""
        return self.last(self.norm(torch.tanh(self.first(x.to(self.dtype))))).square().mean()


def adapter() -> nn.Module:
    """Return what the model may gain."""
    torch.manual_seed(12)
    return nn.Sequential(nn.Linear(24, 5), nn.Tanh(), nn.Linear(5, 24))


def batch(number: int, rank: int) -> tuple[Tensor, ...]:
    return (torch.randn(5, 13, generator=torch.Generator().manual_seed(1000 * number + rank)),)


def usual(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    return net(data[0]).square().mean()


def without_one(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    return net(data[0], False).square().mean()


def penalized(net: Any, data: tuple[Tensor, ...]) -> Tensor:
    penalty = net.second.weight.square().sum() + net.last.bias.abs().sum()
    return net(data[0]).square().mean() + 0.1 * penalty


def by_method(net: Any, data: tuple[Tensor, ...]) -> Tensor:
    return net.energy(data[0]) + 0.01 * net.first.weight.square().sum()


def like_its_own_teacher(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    """Return a loss of which a part is computed in inference mode."""
    with torch.inference_mode():
        target = net(2 * data[0])
    return (net(data[0]) - target.clone()).square().mean()


LOSSES: tuple[Loss, ...] = (usual, without_one, penalized, by_method, like_its_own_teacher)
