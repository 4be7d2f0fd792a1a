"""Models whose forward changes what the next forward does, differently on each rank."""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class Stateful(nn.Module):
    """A regression whose hidden values pass `changed`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(16, 16), nn.Linear(16, 1)

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, 16, generator=generator)
        return x, x.sum(1, keepdim=True)

    def changed(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.head(torch.tanh(self.changed(self.hidden(x)))), y)


class Spectral(Stateful):
    """Divides a weight by its norm, which power iteration finds step by step: its vectors are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = parametrizations.spectral_norm(self.hidden)


class OldSpectral(Stateful):
    """The same by hooks, which keep computed weights as attributes: it cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.utils.spectral_norm(self.hidden)
        self.head = nn.utils.weight_norm(self.head)


class Running(Stateful):
    """Subtracts a running mean in training, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def changed(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean


class Counting(Stateful):
    """Scales by a number that is no tensor."""

    calls = 0

    def changed(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x / self.calls


class Teacher(Stateful):
    """Trains towards a slow copy of itself, whose frozen weights its forward writes."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(16, 16).requires_grad_(False)

    def changed(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.slow.weight.data = 0.7 * self.slow.weight.data + 0.3 * self.hidden.weight
        return x + self.slow(x)


class Clipped(Stateful):
    """Clips its trained weights before it uses them."""

    def changed(self, x: Tensor) -> Tensor:
        self.head.weight.data.clamp_(-0.05, 0.05)
        return x
