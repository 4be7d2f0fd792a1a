"""A parameter is trained by one engine at a time, and belongs to it until the engine is closed or gone."""

import weakref
from collections.abc import Container, Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from zbench.errors import UsageError


class Closable(Protocol):
    """What owns parameters."""

    @property
    def closed(self) -> bool: ...


_owners: Any = WeakIdKeyDictionary()  # parameter -> a weak reference to its owner


def own(model: nn.Module, engine: Closable) -> None:
    """Note that `engine` trains the parameters of `model`."""
    _owners.update((parameter, weakref.ref(engine)) for parameter in model.parameters())


def check_unused(model: nn.Module) -> None:
    """Raise UsageError for a model that another engine trains, or that holds gradients."""
    for name, parameter in model.named_parameters():
        owner: Closable | None = _owners.get(parameter, lambda: None)()
        if owner is not None and not owner.closed:
            raise UsageError(
                f"expected a model that no engine trains, but {name!r} has one; call close() on it first"
            )
    check_no_gradients(model.named_parameters())


def check_no_gradients(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise UsageError for a gradient that no engine.backward has computed: it would be added to its own."""
    with torch._C.DisableTorchFunctionSubclass():  # released parameters answer slowly otherwise
        found = next((name for name, parameter in named if parameter.grad is not None), None)
    if found is not None:
        raise UsageError(
            f"expected no gradient in {found!r} before the engine's own, found one; call model.zero_grad()"
            " (the engine keeps its gradients elsewhere: p.grad stays None)"
        )


def check_members(model: nn.Module, known: Container[int]) -> None:
    """Raise UsageError for a parameter whose id is not `known`: it was added to the model, or replaced."""
    if all(id(parameter) in known for parameter in model.parameters()):
        return
    added = next(name for name, parameter in model.named_parameters() if id(parameter) not in known)
    raise UsageError(
        f"the parameter {added!r} was added to the model, or replaced, after build_engine; save a checkpoint"
        " without it, close this engine and build another one on the changed model"
    )
