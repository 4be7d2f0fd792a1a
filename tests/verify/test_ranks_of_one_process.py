"""The reference plays every rank: they share parameters, tied ones too, and nothing else."""

import dataclasses
import threading

import torch
from torch import Tensor, nn

from tests.verify.runs import MLP, reference, task
from zbench.verify.plain_training import PlainRun
from zbench.verify.trajectory import Reference


class Tied(nn.Module):
    """Uses one weight under two names, and a mean that each forward moves."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(256, 8), nn.Linear(8, 256, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        with torch.no_grad():
            self.mean.lerp_(x.mean((0, 1)).to(self.mean.dtype), 0.1)
        return nn.functional.cross_entropy(self.head(x - self.mean).flatten(0, 1), targets.flatten())


class Locked(Tied):
    """The same, with what copy.deepcopy refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Shared(Tied):
    """The same, with one mean for all ranks."""

    def __deepcopy__(self, memo: object) -> "Shared":
        return self


def trained(model: type[nn.Module], world_size: int) -> Reference:
    made: PlainRun = task(MLP, steps=3, world_size=world_size)
    return reference(dataclasses.replace(made, workload=dataclasses.replace(made.workload, factory=model)))


def same(one: Reference, other: Reference) -> bool:
    return all(torch.equal(v, other.plain.parameters[name]) for name, v in one.plain.parameters.items())


def test_a_model_that_cannot_be_copied_trains_as_one_that_can() -> None:
    assert same(trained(Locked, 3), trained(Tied, 3))


def test_each_rank_has_a_mean_of_its_own() -> None:
    assert same(trained(Shared, 1), trained(Tied, 1))
    assert not same(trained(Shared, 2), trained(Tied, 2))
