"""Models and data of users: that keep state, draw from Python and NumPy, fail, or differ in length."""

import itertools
import random
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

SHIFT = float(np.random.rand())


class Stateful(nn.Module):
    """A regression whose hidden values pass `changed`: a forward that changes what the next one does."""

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


class Scaled(Stateful):
    """Multiplies hidden values by a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def changed(self, x: Tensor) -> Tensor:
        return x * self.scale


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


class Normed(Stateful):
    """Keeps BatchNorm's statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def changed(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Running(Stateful):
    """Subtracts a running mean in training, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def changed(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean


class Idle(Stateful):
    """Has a layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(2, 2)


class Counting(Stateful):
    """Scales by a number that is no tensor, uses a weight under two names, and cannot be copied."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(16, 16)
        self.lock = threading.Lock()
        self.again.weight = self.hidden.weight

    def changed(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.again(x) / self.calls


class Teacher(Stateful):
    """Trains towards a slow copy of itself, whose frozen weights its forward writes."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(16, 16).requires_grad_(False)

    def changed(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.slow.weight.data = 0.7 * self.slow.weight.data + 0.3 * self.hidden.weight
        return x + self.slow(x)


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


def number() -> int:
    return 3


class Line(nn.Module):
    """One layer, whose outputs pass `used`."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 256)

    def used(self, x: Tensor) -> Tensor:
        return x

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.used(self.line(tokens.to(self.line.weight.dtype))).square().mean()


class Greedy(Line):
    """Wants 8 GiB in its forward pass."""

    def used(self, x: Tensor) -> Tensor:
        if not isinstance(x, torch._subclasses.FakeTensor):
            torch.empty(1 << 31).zero_()
        return x


class Frozen(Line):
    """Has parameters, none of them trainable."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class NeverEvaluated(Line):
    """Fails in eval mode, and says whether gradients are on."""

    def used(self, x: Tensor) -> Tensor:
        if not self.training:
            raise ArithmeticError(f"evaluated, gradients: {torch.is_grad_enabled()}")
        return x


class KeepsSomeInEvalMode(Line):
    """Trains beside a dropout and a batch norm that its owner keeps in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = nn.Sequential(nn.BatchNorm1d(256), nn.Dropout(0.5)).eval()

    def used(self, x: Tensor) -> Tensor:
        return self.kept(x)


class _Sentences(Dataset[Tensor]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, place: int) -> Tensor:
        return torch.arange(place + 2)


def padded() -> DataLoader[Tensor]:
    """Return batches of sentences that are as long as their longest one."""
    return DataLoader(_Sentences(), collate_fn=lambda sentences: (pad_sequence(sentences, batch_first=True),))


class Reader(nn.Module):
    """Predicts the place of a token from the token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 1)

    def count_tokens(self, batch: tuple[Tensor, ...]) -> int:
        return batch[0].numel()

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], dtype=self.embed.weight.dtype)
        return (self.embed(tokens).squeeze(-1) - places).square().mean()


def long_message() -> nn.Module:
    """Fail with a message of one line, of 2 MB."""
    raise RuntimeError("a " * 1_000_000)


_CLOCKS = ("perf_counter", "monotonic", "time")
_SHAPES: dict[str, Callable[[int], float]] = {
    "stands": lambda _: 1000.0,
    "goes_back": lambda reads: 1000.0 - reads * 1e-3,
    "is_coarse": lambda reads: 1000.0 + reads // 4,
}


def with_own_clock(shape: str) -> nn.Module:
    """Replace the clocks of Python in every module that has them under a name, as freezegun does."""
    reads = itertools.count()
    for name in _CLOCKS:
        real = getattr(time, name)
        for module in list(sys.modules.values()):
            for attribute, value in list(vars(module).items()):
                if value is real:
                    setattr(module, attribute, lambda: _SHAPES[shape](next(reads)))
    return Stateful()
