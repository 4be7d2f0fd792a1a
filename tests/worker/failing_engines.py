"""Engines and models that fail on purpose."""

import torch
from torch import Tensor, nn

from zbench.engine import build_engine
from zbench.engine.protocols import StepInfo, TrainingEngine
from zbench.spec.engine import EngineSpec


def raises_on_rank_1(
    model: nn.Module, spec: EngineSpec, process_group: object = None, *, instruments: object = None
) -> TrainingEngine:
    """Fails in the second step of rank 1; rank 0 only sees its peer go."""
    engine = build_engine(model, spec)
    steps = 0
    take = engine.step

    def step() -> StepInfo:
        nonlocal steps
        steps += 1
        if steps == 2 and torch.distributed.get_rank() == 1:
            raise ArithmeticError("the second step\nwent wrong")
        return take()

    engine.step = step  # type: ignore[method-assign]
    return engine


class Greedy(nn.Module):
    """Wants 8 GiB in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if not isinstance(tokens, torch._subclasses.FakeTensor):
            torch.empty(1 << 31).zero_()
        return self.line(tokens.to(self.line.weight.dtype)).mean()


def greedy() -> Greedy:
    return Greedy()


def number() -> int:
    return 3


constant = 3


def returns_nothing(model: nn.Module, spec: EngineSpec, process_group: object = None, **_: object) -> None:
    """Forgets to return the engine."""


def lacks_methods(model: nn.Module, spec: EngineSpec, process_group: object = None, **_: object) -> object:
    """Returns something that is no engine."""
    return model


class Frozen(nn.Module):
    """Has parameters, none of them trainable."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.line(tokens.to(self.line.weight.dtype)).mean()


class NeverEvaluated(nn.Module):
    """Fails in eval mode, and says whether gradients are on."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if not self.training:
            raise ArithmeticError(f"evaluated, gradients: {torch.is_grad_enabled()}")
        return self.line(tokens.to(self.line.weight.dtype)).mean()


class KeepsSomeInEvalMode(nn.Module):
    """Trains beside a dropout and a batch norm that its owner keeps in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 256)
        self.kept = nn.Sequential(nn.BatchNorm1d(256), nn.Dropout(0.5)).eval()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.kept(self.line(tokens.to(self.line.weight.dtype))).square().mean()
