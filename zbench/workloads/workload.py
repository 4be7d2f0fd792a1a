"""Workload: a model, micro-batches and a loss, bit for bit the same for every engine and stage.

One seed determines the random numbers of torch, Python and NumPy, so that a model, its data and its steps are
the same in every process.
"""

import hashlib
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.random  # NumPy imports it lazily; here the fork server imports it, not each rank
import torch
from torch import Tensor, nn

from zbench.errors import UsageError

CONTRACT = """a model of your own is trained like this:
    model = callable(**options)  # `model: module:callable`; returns a torch.nn.Module
    batch = model.make_batch(generator, micro_batch_size, sequence_length)  # a tuple of CPU tensors
        # optional; else `data: {dataset: module:callable}`, or (tokens, targets), each [B, T] int64
    loss = model(*batch)  # a scalar tensor, or an output that has `.loss`, as those of transformers
    loss = function(model, batch)  # instead, with `loss: module:function`, where forward returns no loss
    number = model.count_tokens(batch)  # optional: without it, rates are samples a second"""


def scalar_of(output: object) -> Tensor:
    """Return the scalar loss in the output of a model. UsageError with the contract if there is none."""
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    shown = loss if isinstance(loss, Tensor) else output
    described = (
        f"a tensor of shape {tuple(shown.shape)}" if isinstance(shown, Tensor) else type(shown).__name__
    )
    raise UsageError(f"workload.model: expected a scalar loss, got {described}; {CONTRACT}")


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on `device` uses (dropout, layer drop, masked inputs).

    `torch.manual_seed` also checks for every other type of accelerator, which takes 0.1 ms each time.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    _seed_python_and_numpy(seed)


@contextmanager
def drawn_by(seed: int) -> Iterator[None]:
    """Seed the CPU's generators with `seed` in the body; restore their states afterwards."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _seed_python_and_numpy(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def _seed_python_and_numpy(seed: int) -> None:
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])


def weighted(loss: Tensor, weight: float, divisor: int) -> Tensor:
    """Return loss * weight / divisor; the same tensor if both are 1."""
    loss = loss if weight == 1.0 else loss * weight
    return loss if divisor == 1 else loss / divisor


Batch = tuple[Tensor, ...]


class Data(Protocol):
    """A source of samples."""

    def draw(self, seed: int, samples: int) -> Batch:
        """Return so many samples: CPU tensors, bit for bit the same for the same seed and number."""


def micro_batches_per_draw(data: Data, samples: int, micros: int) -> int:
    """Return `micros` if a draw for so many micro-batches can be cut into them, else 1.

    It can be cut if the first dimension of every tensor grows with the number of samples. samples: of one
    micro-batch.
    """
    if micros == 1:
        return 1
    pairs = zip(data.draw(0, samples), data.draw(0, samples * micros), strict=True)
    return micros if all(b.dim() > 0 and a.dim() > 0 and len(b) == micros * len(a) for a, b in pairs) else 1


def derived_seed(*numbers: int) -> int:
    """Return a 63-bit seed that depends on the numbers and their order."""
    digest = hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and its data.

    samples_per_micro_batch: on one rank. micro_batches_per_draw: consecutive micro-batches that are cut from
    one draw of the data: with `global_batch_size` all of a step, so that a rank trains on the same samples
    whatever the size of a micro-batch. count_flops: see `flops_per_micro_batch`. count_tokens: counts the
    tokens of a micro-batch; None if tokens are not known. compute_loss: computes the loss; None: call the
    model with the batch as its arguments. count_weight: returns the weight of a micro-batch's loss; None:
    all weights are equal.
    """

    factory: Callable[[], nn.Module]
    data: Data
    seed: int
    world_size: int
    samples_per_micro_batch: int
    micro_batches_per_draw: int = 1
    count_flops: "Callable[[Workload], float | None]" = lambda _: None
    count_tokens: Callable[[Batch], int] | None = None
    compute_loss: Callable[[nn.Module, Batch], Any] | None = None
    count_weight: Callable[[Batch], int] | None = None
    _last_draw: dict[int, Batch] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def flops_per_micro_batch(self) -> float | None:
        """Return the model FLOPs of one forward and backward; None if unknown.

        A multiply-add is two; recomputation is not counted. For a user's own model this takes up to a second.
        """
        return self.count_flops(self)

    def size(self, batch: Batch) -> int:
        """Return the number of tokens in a micro-batch or, if tokens are not known, of elements."""
        return self.count_tokens(batch) if self.count_tokens else sum(tensor.numel() for tensor in batch)

    def make_model(self) -> nn.Module:
        """Return a new model on the CPU, bit for bit the same at every call, in every process.

        A model in eval mode, as pretrained models are, is set to training mode. In a model in training mode,
        modules in eval mode, such as a frozen batch norm, stay in eval mode.
        """
        with drawn_by(derived_seed(self.seed, -1)):
            model = self.factory()
            return model if model.training else model.train()

    def batch(self, step: int, micro: int, rank: int) -> Batch:
        """Return micro-batch `micro` of `rank` in optimizer step `step` (all from 0), on the CPU."""
        draw, part = divmod(micro, self.micro_batches_per_draw)
        seed, samples = self.micro_seed(step, draw, rank), self.samples_per_micro_batch
        if self.micro_batches_per_draw == 1:
            return self.data.draw(seed, samples)
        if seed not in self._last_draw:
            self._last_draw.clear()
            self._last_draw[seed] = self.data.draw(seed, samples * self.micro_batches_per_draw)
        return tuple(x.chunk(self.micro_batches_per_draw)[part].clone() for x in self._last_draw[seed])

    def micro_seed(self, step: int, micro: int, rank: int) -> int:
        """Return the seed of a micro-batch. The caller also passes it to `seed_all` before the forward, for
        dropout. ValueError if the rank is out of range."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank must be in [0, {self.world_size}), got {rank}")
        return derived_seed(self.seed, step, micro, rank)

    def loss_weights(self, step: int, micros: int) -> list[list[float]]:
        """Return the factors of a step's losses, [rank][micro]: 1, or count_weight divided by its mean."""
        ranks = range(self.world_size)
        count = self.count_weight
        if count is None:
            return [[1.0] * micros for _ in ranks]
        counts = [[count(self.batch(step, micro, rank)) for micro in range(micros)] for rank in ranks]
        mean = sum(map(sum, counts)) / (micros * self.world_size)
        return [[number / mean if mean else 1.0 for number in of_rank] for of_rank in counts]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the scalar loss; floating-point inputs are cast to the dtype of the model's parameters."""
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        batch = tuple(x.to(dtype) if x.is_floating_point() else x for x in batch)
        return scalar_of(self.compute_loss(model, batch) if self.compute_loss else model(*batch))
