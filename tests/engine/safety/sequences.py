"""Random sequences of what users do, on an engine and on plain PyTorch at once; runs inside the pool's ranks.

A run is a seeded list of rules. After every rule each parameter and each first moment of the engine has the
bits of the plain run, or the rule was refused and changed nothing. The plain run plays every rank.
"""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tests.engine.plain import Options, PlainTrainer
from zbench.engine import Engine, build_engine
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

SIZES = {"reduce_bucket_size": 900, "allgather_bucket_size": 700, "accumulation_mode": "multi_backward"}


Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]


class AccidentError(Exception):
    """What user code raises."""


class Net(nn.Module):
    """Layers, a tied weight, one that is used at times, and one that calls itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.first, self.second = nn.Linear(13, 24), nn.Linear(24, 24)
        self.sometimes, self.last = nn.Linear(24, 24), nn.Linear(24, 7)
        self.norm = nn.LayerNorm(24)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, use: bool = True) -> Tensor:
        h = self.norm(torch.tanh(self.first(x)))
        h = self.sometimes(h) if use else h
        return self.last(torch.tanh(self.second(h)) + functional.linear(h, self.second.weight))

    def energy(self, x: Tensor) -> Tensor:
        """Return another loss, not by way of forward."""
        return self.last(self.norm(torch.tanh(self.first(x)))).square().mean()


def batch(number: int, rank: int) -> tuple[Tensor, ...]:
    return (torch.randn(5, 13, generator=torch.Generator().manual_seed(1000 * number + rank)),)


def usual(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    return net(data[0]).square().mean()


def without_one(net: nn.Module, data: tuple[Tensor, ...]) -> Tensor:
    return net(data[0], False).square().mean()


def penalized(net: Any, data: tuple[Tensor, ...]) -> Tensor:
    penalty = net.second.weight.square().sum() + net.last.bias.abs().sum()
    return net(data[0]).square().mean() + 0.1 * penalty


def by_method(net: Any, data: tuple[Tensor, ...]) -> Tensor:
    return net.energy(data[0]) + 0.01 * net.first.weight.square().sum()


LOSSES: tuple[Loss, ...] = (
    usual,
    without_one,
    penalized,
    by_method,
)


class Both:
    """An engine and its plain twin."""

    def __init__(self, group: dist.ProcessGroup, row: dict[str, Any], seed: int) -> None:
        self.group, self.row, self.draw = group, row, random.Random(seed)
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.engine = self._build()
        each = row["zero_stage"] >= 2
        plan = Options(each_backward=each, max_norm=row.get("gradient_clipping", 0.0))
        optimizer = {"lr": 1e-3, "weight_decay": 0.01}
        self.plain = PlainTrainer(Net(), world_size=self.world, optimizer=optimizer, plan=plan)
        self.number = 0
        self.saved: list[tuple[dict[str, Tensor], PlainTrainer]] = []
        self.old: Tensor | None = None

    def _build(self) -> Engine:
        spec = EngineSpec.model_validate({**SIZES, **self.row})
        return build_engine(Net(), spec, self.group)

    @property
    def nets(self) -> tuple[Any, Any]:
        return self.engine.model, self.plain.model

    def compare(self, after: str) -> None:
        """Every parameter and first moment has the same bits."""
        values, moments = self.engine.full_parameters(), self.engine.first_moments()
        for name, p in self.plain.model.named_parameters():
            assert torch.equal(values[name], p.detach()), f"{name} after {after}"
        for name, expected in self.plain.trajectory().moments.items():
            assert torch.equal(moments[name], expected), f"exp_avg of {name} after {after}"

    def step(self) -> None:
        loss, backwards = self.draw.choice(LOSSES), self.draw.choice((1, 1, 2, 3))
        self.number += 1
        numbers = [10 * self.number + k for k in range(backwards)]
        if not any(p.requires_grad for p in self.plain.model.parameters()):
            return
        for k, number in enumerate(numbers):
            self.engine.backward(loss(self.engine.model, batch(number, self.rank)), last=k == backwards - 1)
            if self.draw.random() < 0.2:
                self.evaluate()
        self.engine.step()
        self.plain.step(loss, [[batch(n, r) for r in range(self.world)] for n in numbers])

    def discard_a_step(self) -> None:
        """Begin a step, and discard it in one of the two ways."""
        if any(p.requires_grad for p in self.plain.model.parameters()):
            self.engine.backward(usual(self.engine.model, batch(4, self.rank)), last=self.draw.random() < 0.5)
        self.draw.choice((self.engine.zero_grad, self.engine.optimizer.zero_grad))()

    def evaluate(self) -> None:
        with torch.no_grad():
            mine, expected = (net(batch(0, self.rank)[0]) for net in self.nets)
        assert torch.equal(mine, expected)

    def stop_an_evaluation_early(self) -> None:
        net = self.engine.model
        with torch.no_grad():
            net.norm(net.first(batch(0, self.rank)[0]))

    def generate(self) -> None:
        x = batch(3, self.rank)[0]
        mine, expected = x, x
        with torch.inference_mode():
            for _ in range(3):
                mine = functional.pad(self.engine.model(mine), (0, 6))
                expected = functional.pad(self.plain.model(expected), (0, 6))
        assert torch.equal(mine, expected)

    def freeze_or_unfreeze(self) -> None:
        names = [name for name, _ in self.plain.model.named_children()]
        name, trained = self.draw.choice(names), self.draw.random() < 0.6
        for net in self.nets:
            net.get_submodule(name).requires_grad_(trained)

    def write(self) -> None:
        name = self.draw.choice([name for name, _ in self.plain.model.named_parameters()])
        mine, expected = (net.get_parameter(name) for net in self.nets)
        with self.engine.gathered(mine, write=True), torch.no_grad():
            mine.mul_(0.75 if self.rank == 0 else 3.0)
        self._edit_plain(expected, 0.75)

    def edit(self) -> None:
        """Change a weight between steps, as an attribute of its module."""
        module = self.draw.choice(("first", "second", "last", "norm"))
        for net in self.nets:
            weight = net.get_submodule(module).weight
            if self.draw.random() < 2:  # both nets alike
                weight.data.mul_(0.875)
        self._sync_plain()

    def load_into_the_model(self) -> None:
        for net in self.nets:
            net.load_state_dict({n: v * 0.9375 for n, v in net.state_dict().items()})
        self._sync_plain()

    def read(self) -> None:
        state = self.engine.model.state_dict()
        for name, p in self.plain.model.named_parameters():
            assert torch.equal(state[name], p.detach()), name
        with self.engine.gathered(self.engine.model):
            values = dict(self.engine.model.named_parameters())
            for name, p in self.plain.model.named_parameters():
                assert torch.equal(values[name], p), name

    def read_what_is_not_there(self) -> None:
        for name, p in self.engine.model.named_parameters():
            try:
                total = p.detach().sum()
            except UsageError:
                continue
            assert torch.equal(total, self.plain.model.get_parameter(name).sum()), name

    def copy(self) -> None:
        with self.engine.gathered(self.engine.model):
            copied = deepcopy(self.engine.model)
        assert torch.equal(copied(batch(1, 0)[0]), self.plain.model(batch(1, 0)[0]))

    def save(self) -> None:
        self.saved.append((self.engine.state_dict(), deepcopy(self.plain)))

    def load(self) -> None:
        if self.saved:
            state, plain = self.draw.choice(self.saved)
            self.engine.load_state_dict(state)
            self._return_to(plain)

    def resume_in_another_engine(self) -> None:
        state, flags = self.engine.state_dict(), [p.requires_grad for p in self.plain.model.parameters()]
        self.engine.close()
        self.engine = self._build()
        self.engine.load_state_dict(state)
        for p, trained in zip(self.engine.model.parameters(), flags, strict=True):
            p.requires_grad_(trained)

    def fail_in_forward(self) -> None:
        self._fail(self.draw.choice((AccidentError, KeyboardInterrupt)), in_backward=False)

    def fail_in_backward(self) -> None:
        self._fail(AccidentError, in_backward=True)

    def change_the_learning_rate(self) -> None:
        lr = self.draw.choice((1e-3, 3e-3, 1e-4))
        for groups in (self.engine.param_groups, self.plain.optimizer.param_groups):
            for group in groups:
                group["lr"] = lr

    def differentiate_an_old_loss(self) -> None:
        if all(p.requires_grad for p in self.plain.model.parameters()):
            old = usual(self.engine.model, batch(5, self.rank))
            self.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                self.engine.backward(old, last=True)

    def _fail(self, error: type[BaseException], *, in_backward: bool) -> None:
        def act(*args: Any) -> None:
            raise error

        net = self.engine.model
        hook = (lambda m, a, out: out.register_hook(act) and None) if in_backward else act
        handle = net.second.register_forward_hook(hook)
        try:
            self.engine.backward(usual(net, batch(2, self.rank)), last=True)
        except error:
            return
        finally:
            handle.remove()
        assert in_backward, "the forward did not fail"
        assert not any(p.requires_grad for p in net.parameters()), "the backward did not fail"

    def _edit_plain(self, p: nn.Parameter, factor: float) -> None:
        with torch.no_grad():
            p.mul_(factor)
        self._sync_plain()

    def _sync_plain(self) -> None:
        for name, p in self.plain.model.named_parameters():
            self.plain.masters[name].data[: p.numel()] = p.detach().reshape(-1)

    def _return_to(self, plain: PlainTrainer) -> None:
        flags = [p.requires_grad for p in self.plain.model.parameters()]
        self.plain = deepcopy(plain)
        for p, trained in zip(self.plain.model.parameters(), flags, strict=True):
            p.requires_grad_(trained)


RULES: dict[str, int] = {
    "step": 8,
    "discard_a_step": 1,
    "evaluate": 1,
    "stop_an_evaluation_early": 1,
    "generate": 1,
    "freeze_or_unfreeze": 3,
    "write": 1,
    "edit": 1,
    "load_into_the_model": 1,
    "read": 1,
    "read_what_is_not_there": 1,
    "copy": 1,
    "save": 1,
    "load": 2,
    "resume_in_another_engine": 1,
    "fail_in_forward": 1,
    "fail_in_backward": 1,
    "change_the_learning_rate": 1,
    "differentiate_an_old_loss": 1,
}


def run(group: dist.ProcessGroup, row: dict[str, Any], seed: int, length: int) -> list[str]:
    """Follow a seeded sequence of rules; return their names. AssertionError names the first that differs."""
    both, done = Both(group, row, seed), []
    for _ in range(length):
        rule = both.draw.choices(list(RULES), weights=list(RULES.values()))[0]
        done.append(rule)
        try:
            getattr(both, rule)()
            both.compare(rule)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {row}: {', '.join(done)}") from error
    both.engine.close()
    return done
