"""What the programs share: flags and the seed, the log of step times, synthetic data, and variants.

A variant changes how a step is computed, and not what is trained: results differ by rounding alone.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

SEED = 1


def run(*programs: Callable[[argparse.Namespace], None]) -> None:
    """Read the flags, set torch's seed, and run the program that the first argument names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=[program.__name__ for program in programs])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path("."))
    parser.add_argument(
        "--variant",
        type=int,
        choices=(0, 1, 2),
        default=0,
        help="0: the base; 1: another kernel of the optimizer; 2: another layout, or order of sums",
    )
    args = parser.parse_args()
    torch.manual_seed(SEED)
    next(program for program in programs if program.__name__ == args.program)(args)


class StepLog:
    """The seconds of each step, as JSON lines in a file."""

    def __init__(self, output: Path) -> None:
        self._path = output / "steps.jsonl"
        self._began = time.perf_counter()

    def end_step(self) -> None:
        """Write the time since the last step."""
        now = time.perf_counter()
        with self._path.open("a") as log:
            print(json.dumps({"seconds": now - self._began}), file=log)
        self._began = time.perf_counter()


def kernel(variant: int, faster: str = "fused") -> dict[str, bool]:
    """Return the optimizer's keyword for a loop over parameters; for variant 1 `faster` takes its place."""
    return {faster: True} if variant == 1 else {"foreach": False}


def parts(variant: int, *tensors: Tensor) -> Iterator[tuple[float, ...]]:
    """Yield (share of the batch, part of each tensor): all at once, or for variant 2 in two halves."""
    rows = len(tensors[0])
    for each in zip(*(tensor.chunk(2 if variant == 2 else 1) for tensor in tensors), strict=True):
        yield len(each[0]) / rows, *each


def batches(size: int, steps: int, *tensors: Tensor) -> Iterator[list[Tensor]]:
    """Yield shuffled batches of a data set, for as many epochs as the steps need."""
    order = torch.Generator().manual_seed(SEED)
    loader = DataLoader(TensorDataset(*tensors), size, shuffle=True, drop_last=True, generator=order)
    while True:
        for batch in loader:
            if steps == 0:
                return
            yield batch
            steps -= 1


def images(count: int, side: int, channels: int = 1, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Return [count, channels, side, side] images, each its class's picture and noise, and the classes."""
    random = torch.Generator().manual_seed(SEED)
    pictures = torch.rand(classes, channels, side, side, generator=random)
    labels = torch.randint(classes, (count,), generator=random)
    noise = torch.randn(count, channels, side, side, generator=random)
    return (pictures[labels] + 0.3 * noise).clamp(0, 1), labels


def graph(nodes: int = 120, features: int = 24, classes: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return [nodes, features], a symmetric 0-1 adjacency with loops, and the classes, which cluster."""
    random = torch.Generator().manual_seed(SEED)
    labels = torch.randint(classes, (nodes,), generator=random)
    chance = torch.where(labels[:, None] == labels, 0.12, 0.01)
    edges = (torch.rand(nodes, nodes, generator=random) < chance).triu(1)
    adjacency = (edges | edges.T).float() + torch.eye(nodes)
    centres = torch.randn(classes, features, generator=random)
    return centres[labels] + torch.randn(nodes, features, generator=random), adjacency, labels


def corpus(columns: int, rows: int, words: int = 60) -> Tensor:
    """Return [rows, columns] of word numbers: each column is a text in which a word suggests the next."""
    random = torch.Generator().manual_seed(SEED)
    following = torch.randint(words, (words, 4), generator=random)
    text = [torch.randint(words, (columns,), generator=random)]
    for _ in range(rows - 1):
        choice = torch.randint(4, (columns,), generator=random)
        text.append(following[text[-1], choice])
    return torch.stack(text)
