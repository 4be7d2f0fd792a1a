"""Tensors of `model.state_dict()`: plain PyTorch keeps them up to date. The engine cannot if the parameters
have moved to other memory, as those of a sharded store do after every use.

Such a tensor is a copy of older values. When a step, or an edit, gives a parameter other values, the copies
become `Stale`: the same objects, of a class that refuses to be used. A copy that was written to, and not
loaded, is refused at the next call of the engine, as the parameter has not changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from zbench.engine.parameters.released import DESCRIBE
from zbench.errors import UsageError

_REMEDY = (
    "with this engine it is a copy. Call model.state_dict() anew; to keep values, keep"
    " copy.deepcopy(model.state_dict())"
)
_NAME = "_zbench_name"


class Stale(Tensor):
    """A copy of a parameter that has other values now."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in DESCRIBE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise stale_error(next((value for value in args if isinstance(value, Stale)), None))


def stale_error(value: object) -> UsageError:
    """Return the error of a use of a copy."""
    name = getattr(value, _NAME, "a parameter")
    return UsageError(f"{name!r} of model.state_dict() is from before the last step or edit: {_REMEDY}")


class HandedOut:
    """The copies of parameters that a program still keeps, by parameter, with their versions."""

    def __init__(self) -> None:
        self._copies: dict[int, list[tuple[TensorWeakRef, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._copies)

    def note(self, parameter: nn.Parameter, value: Tensor, name: str) -> None:
        """Note what a state of the model has for a parameter."""
        setattr(value, _NAME, name)
        copies = self._copies.setdefault(id(parameter), [])
        copies[:] = [copy for copy in copies if copy[0]() is not None]
        copies.append((TensorWeakRef(value), value._version))

    def expire(self, parameter: nn.Parameter) -> None:
        """A parameter has other values now."""
        for reference, _ in self._copies.pop(id(parameter), ()):
            if (value := reference()) is not None:
                value.__class__ = Stale

    def expire_all(self) -> None:
        """A step was taken."""
        for copies in self._copies.values():
            for reference, _ in copies:
                if (value := reference()) is not None:
                    value.__class__ = Stale
        self._copies.clear()

    def written(self, parameter: nn.Parameter) -> Iterator[Tensor]:
        """Yield the copies of a parameter that were written to in place."""
        for reference, version in self._copies.get(id(parameter), ()):
            value = reference()
            if value is not None and value._version != version:
                yield value


def written_error(value: Tensor) -> UsageError:
    """Return the error of a copy that was written to."""
    name = getattr(value, _NAME, "a parameter")
    return UsageError(
        f"{name!r} of model.state_dict() was changed, and the parameter was not: {_REMEDY}. To change the"
        " parameter, call model.load_state_dict(state), or write inside engine.gathered(..., write=True)"
    )
