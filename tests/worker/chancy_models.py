"""A user's model and data that draw from Python and NumPy wherever they can."""

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

SHIFT = float(np.random.rand())


class Chancy(nn.Module):
    """Starts from NumPy's numbers; leaves a layer out as Python's draw, and masks inputs as NumPy's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 1)
        for layer in self.layers:
            layer.weight.data = torch.from_numpy(np.random.randn(16, 16).astype(np.float32)) / 4

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x * torch.from_numpy((np.random.rand(*x.shape) < 0.9).astype(np.float32)).to(x.dtype)
        for layer in self.layers:
            if random.random() < 0.7:
                x = x + torch.tanh(layer(x))
        return nn.functional.mse_loss(self.head(x), y)


class WithBatches(Chancy):
    """Makes its own batches, and does not draw from the generator that it is given."""

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(np.random.randn(size, 16).astype(np.float32))
        return x, x.sum(1, keepdim=True) + random.random()


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Values that were drawn when it was made, turned at random whenever they are read."""

    def __init__(self) -> None:
        self._values = np.random.randn(20, 16).astype(np.float32)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(self._values[place] * random.choice([-1, 1])) + torch.rand(16) / 10
        return x, x.sum(0, keepdim=True) + SHIFT


class Unseeded(WithBatches):
    """Masks its inputs as a generator of its own draws, which nobody can seed."""

    def __init__(self) -> None:
        super().__init__()
        self._own = np.random.default_rng()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x * torch.from_numpy(self._own.random(x.shape)).to(x.dtype), y)
