"""Faults that a lot chose: each of the update is found, and 95 of 100 of the gradient.

An engine is drawn by its number: `engine: tests.worker.test_drawn_faults:update_17`, or `gradient_17`.
Of the update: a term of it is 0.3 % to 30 % too large or too small, for all parameters, a group or a tensor,
on all ranks or one, in one of the replayed steps or in all. Of the gradient: that of one tensor of at least
256 elements is 1 % to 100 % too large or too small, by what all ranks and micro-batches add or by one's part.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.worker.conftest import RunTrial
from tests.worker.engines import Engine
from tests.worker.test_wrong_engines import correctness
from zbench.spec.engine import EngineSpec
from zbench.verify.evidence import adam_of
from zbench.verify.replay import Adam

TERMS = ("lr", "weight_decay", "beta1", "beta2")


@dataclass(frozen=True, slots=True)
class UpdateFault:
    term: str
    pattern: str
    rank: int | None
    step: int | None
    size: float

    @classmethod
    def of(cls, number: int, model: nn.Module, groups: list[str]) -> "UpdateFault":
        """Draw a fault that changes something: biases begin at zero and norms at one, where a share of decay
        is less than rounding; a tensor may be all on one rank.
        """
        lot = random.Random(f"update {number}")
        term, step = lot.choice(TERMS), lot.choice([None, 0, 1, 4])
        decays = term == "weight_decay"
        tensor = lot.choice([name for name, p in model.named_parameters() if p.dim() > 1 or not decays])
        pattern = lot.choice(["*", tensor, *([] if decays else groups)])
        rank = None if pattern == tensor else lot.choice([None, 0, 1])
        return cls(term, pattern, rank, step, _size(lot, 0.003, 0.3))

    def hits(self, name: str, step: int) -> bool:
        here = self.rank in (None, dist.get_rank()) and self.step in (None, step)
        return here and fnmatchcase(name, self.pattern)

    def break_it(self, old: dict[str, Tensor], new: dict[str, Tensor], adam: Adam, count: int) -> None:
        """Write what Adam makes of the step's gradient with another term, rounded once."""
        factor = {term: 1 + self.size * (term == self.term) for term in TERMS}
        before = {kind: value.double() for kind, value in old.items()}
        mean = before.get("exp_avg", torch.zeros_like(before["param"]))
        square = before.get("exp_avg_sq", torch.zeros_like(before["param"]))
        gradient = (new["exp_avg"].double() - adam.beta1 * mean) / (1 - adam.beta1)
        mean = mean + (1 - adam.beta1) * factor["beta1"] * (gradient - mean)
        square = square + (1 - adam.beta2) * factor["beta2"] * (gradient.square() - square)
        first, second = adam.corrections(count)
        step = mean / first / ((square / second).sqrt() + adam.eps)
        decay = adam.weight_decay * factor["weight_decay"] * before["param"]
        new["param"].copy_(before["param"] - adam.lr * (decay + factor["lr"] * step))
        new["exp_avg"].copy_(mean)
        new["exp_avg_sq"].copy_(square)


def _size(lot: random.Random, least: float, most: float) -> float:
    return math.exp(lot.uniform(math.log(least), math.log(most))) * lot.choice((-1, 1))


def update(number: int) -> type[Engine]:
    class Faulty(Engine):
        def __init__(self, model: nn.Module, spec: EngineSpec, *rest: Any, **more: Any) -> None:
            super().__init__(model, spec, *rest, **more)
            self.fault = UpdateFault.of(number, model, list(spec.param_groups))
            self.old = self.copied()

        def copied(self) -> dict[str, dict[str, Tensor]]:
            parts = self.inner.optimizer_parts()
            return {key: {kind: v.clone() for kind, v in part.items()} for key, part in parts.items()}

        def after_step(self) -> None:
            for key, part in self.inner.optimizer_parts().items():
                name = key.rpartition("@")[0]
                if self.fault.hits(name, self.count - 1):
                    self.fault.break_it(self.old[key], part, adam_of(name, self.spec), self.count)
            self.old = self.copied()

    return Faulty


def gradient(number: int) -> type[Engine]:
    class Faulty(Engine):
        backwards = 0

        def __init__(self, model: nn.Module, spec: EngineSpec, *rest: Any, **more: Any) -> None:
            super().__init__(model, spec, *rest, **more)
            lot = random.Random(f"gradient {number}")
            large = [p for p in model.parameters() if p.numel() >= 256]
            self.rank, self.micro = lot.choice([None, None, 0, 1]), lot.choice([None, None, 0, 1])
            self.size = _size(lot, 0.01, 1.0) * 2 ** ((self.rank is not None) + (self.micro is not None))
            lot.choice(large).register_hook(self.scaled)

        def scaled(self, value: Tensor) -> Tensor:
            here = self.rank in (None, dist.get_rank()) and self.micro in (None, self.backwards % 2)
            return value * (1 + self.size) if here else value

        def backward(self, loss: Tensor, last: bool | None = None) -> None:
            super().backward(loss, last)
            self.backwards += 1

    return Faulty


def __getattr__(name: str) -> Callable[..., Engine]:
    kind, _, number = name.partition("_")
    if kind not in ("update", "gradient"):
        raise AttributeError(name)
    return {"update": update, "gradient": gradient}[kind](int(number))


GROUPS = {"*norm*": {"weight_decay": 0.0, "betas": [0.8, 0.95]}, "*.bias": {"lr": 2e-3, "weight_decay": 0.1}}
LONG = pytest.param(100, marks=pytest.mark.soak)
IN_CHECK = pytest.param(3, marks=pytest.mark.check)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def unnoticed(run_trial: RunTrial, kind: str, draws: int, dtype: str) -> list[str]:
    """Return the faults that no verdict told."""
    names = [f"tests.worker.test_drawn_faults:{kind}_{number}" for number in range(draws)]
    settings = {"dtype": dtype, "param_groups": GROUPS}
    fine = ("identical", "equivalent")
    return [name for name in names if correctness(run_trial, name, **settings).verdict in fine]


@pytest.mark.parametrize("draws", [IN_CHECK, LONG])
@DTYPES
def test_every_drawn_fault_of_the_update_is_noticed(run_trial: RunTrial, dtype: str, draws: int) -> None:
    assert unnoticed(run_trial, "update", draws, dtype) == []


@pytest.mark.parametrize("draws", [IN_CHECK, LONG])
@DTYPES
def test_drawn_faults_of_the_gradient_are_noticed(run_trial: RunTrial, dtype: str, draws: int) -> None:
    assert len(unnoticed(run_trial, "gradient", draws, dtype)) <= draws * 0.05
