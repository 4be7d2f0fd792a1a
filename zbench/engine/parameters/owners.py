"""Which engine a parameter belongs to, until that engine is closed or gone."""

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary


class Owner(Protocol):
    """An engine. holds_gradients: a step has begun, and its gradients are with the engine."""

    @property
    def closed(self) -> bool: ...
    @property
    def holds_gradients(self) -> bool: ...


_owners: Any = WeakIdKeyDictionary()  # parameter -> a weak reference to its owner


def own(parameters: Iterable[nn.Parameter], engine: Owner) -> None:
    """Note that these parameters belong to `engine`."""
    _owners.update((parameter, weakref.ref(engine)) for parameter in parameters)


def owner_of(parameter: nn.Parameter) -> Owner | None:
    """Return the open engine that a parameter belongs to, or None."""
    owner: Owner | None = _owners.get(parameter, lambda: None)()
    return None if owner is None or owner.closed else owner
