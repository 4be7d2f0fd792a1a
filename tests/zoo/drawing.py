"""Batches and noise that the models share. All of it is drawn in float32,
so that no draw depends on a dtype.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Return normally distributed numbers, float32."""
    return torch.randn(shape, generator=generator)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Return numbers from [0, 1), float32."""
    return torch.rand(shape, generator=generator)


def whole(generator: torch.Generator, below: int, *shape: int) -> Tensor:
    """Return whole numbers from [0, below), int64."""
    return torch.randint(below, shape, generator=generator)


def skewed(generator: torch.Generator, below: int, *shape: int) -> Tensor:
    """Return whole numbers from [0, below), int64; small numbers are frequent, as words of a text are."""
    return (uniform(generator, *shape).pow(3) * below).long().clamp(max=below - 1)


def tokens(generator: torch.Generator, vocabulary: int, batch_size: int, length: int) -> Tensor:
    """Return sequences int64 [batch_size, length]: a token mostly follows from the one before it."""
    steps = skewed(generator, vocabulary, batch_size, length)
    surprising = uniform(generator, batch_size, length) < 0.3
    result = [steps[:, 0]]
    for position in range(1, length):
        follower = (3 * result[-1] + 1) % vocabulary
        result.append(torch.where(surprising[:, position], steps[:, position], follower))
    return torch.stack(result, dim=1)


def labelled_images(
    generator: torch.Generator, batch_size: int, classes: int, channels: int, side: int
) -> tuple[Tensor, Tensor]:
    """Return images [batch_size, channels, side, side], waves plus noise, and labels [batch_size]:
    the frequency.
    """
    labels = whole(generator, classes, batch_size)
    line = torch.linspace(0, 3.1, side)
    wave = torch.sin((labels + 1).view(-1, 1, 1) * line.view(1, -1, 1) + line.view(1, 1, -1))
    noise = normal(generator, batch_size, channels, side, side)
    return wave.unsqueeze(1) + 0.7 * noise, labels


def labelled_masks(generator: torch.Generator, batch_size: int, side: int) -> tuple[Tensor, Tensor]:
    """Return images [batch_size, 1, side, side] and masks [batch_size, side, side], int64:
    a noisy disc is 1.
    """
    line = torch.linspace(-1, 1, side)
    centres = uniform(generator, batch_size, 2, 1, 1) - 0.5
    radii = 0.3 + 0.5 * uniform(generator, batch_size, 1, 1)
    distances = (line.view(1, -1, 1) - centres[:, 0]).square() + (
        line.view(1, 1, -1) - centres[:, 1]
    ).square()
    masks = distances.sqrt() < radii
    images = masks.float() + 0.5 * normal(generator, batch_size, side, side)
    return images.unsqueeze(1), masks.long()


def noise_like(tensor: Tensor) -> Tensor:
    """Return normal noise in the shape and dtype of a tensor, from the global generator."""
    return torch.randn(tensor.shape, device=tensor.device).to(tensor.dtype)


def uniform_like(tensor: Tensor) -> Tensor:
    """Return uniform noise, inside (0, 1), in the shape and dtype of a tensor, from the global generator."""
    return torch.rand(tensor.shape, device=tensor.device).clamp(1e-3, 1 - 4e-3).to(tensor.dtype)


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers of these widths, with activations between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])
