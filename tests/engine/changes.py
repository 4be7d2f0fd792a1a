"""What a user changes between steps; the same on every rank, and in the plain run that is compared."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

Groups = list[dict[str, Any]]
Change = Callable[[int, nn.Module, Groups], None]


def nothing(step: int, model: nn.Module, groups: Groups) -> None:
    """Leave everything as it is."""


def schedule(step: int, model: nn.Module, groups: Groups) -> None:
    """Give every group another learning rate, other betas, eps and weight decay at every step."""
    for k, group in enumerate(groups):
        group["lr"] = 1e-3 * (1 + step) / (1 + k)
        group["betas"] = (0.9 - 0.1 * step, 0.999 - 0.02 * step - 0.01 * k)
        group["eps"] = 1e-8 * 10**step
        group["weight_decay"] = 0.1 * step + 0.01 * k


def thaw(step: int, model: nn.Module, groups: Groups) -> None:
    """Freeze a layer for one step."""
    for p in model.get_submodule("last").parameters():
        p.requires_grad_(step != 1)


CHANGES: Mapping[str, Change] = {f.__name__: f for f in (nothing, schedule, thaw)}
