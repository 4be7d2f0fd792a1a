"""A classifier as a training script has it: a module, a data set, a loss. Nothing here knows zbench."""

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset


class Classifier(nn.Module):
    """A stack of linear layers. Input `[B, features]` float32, output `[B, classes]`."""

    def __init__(self, features: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.leave = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one logit for each class."""
        x = self.enter(x).relu()
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.leave(x)


def make_model(features: int = 64, width: int = 256, depth: int = 4, classes: int = 10) -> nn.Module:
    """Return the model; arguments come from `workload.options`."""
    return Classifier(features, width, depth, classes)


def make_dataset(samples: int = 4096, features: int = 64, classes: int = 10) -> Dataset:
    """Return points of `classes` clusters, `[features]` float32 with an int64 label each."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (samples,), generator=generator)
    centers = torch.randn(classes, features, generator=generator)
    return TensorDataset(centers[labels] + torch.randn(samples, features, generator=generator), labels)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy of a batch."""
    points, labels = batch
    return nn.functional.cross_entropy(model(points), labels)
