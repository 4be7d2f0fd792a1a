"""Models with what makes references hard: chance, and parameters that receive no gradient."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout


class Small(nn.Module):
    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.embed = nn.Embedding(256, 16)
        self.unused = nn.Parameter(torch.ones(5))
        self.head = nn.Linear(16, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = dropout(self.embed(tokens), self.probability)
        return cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def with_dropout() -> Small:
    return Small(0.5)


def with_unused() -> Small:
    return Small(0.0)
