"""A parameter is trained by one engine at a time, and belongs to it until the engine is closed or gone."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from zbench.engine.parameters.base import ParamInfo
from zbench.engine.parameters.released import gradient_of, owner_of
from zbench.errors import UsageError


def check_unused(named: Mapping[str, nn.Parameter]) -> None:
    """Raise UsageError for a parameter that another engine trains, or that holds a gradient."""
    for name, parameter in named.items():
        if owner_of(parameter) is not None:
            raise UsageError(
                f"expected a model that no engine trains, but {name!r} has one; call close() on it first"
            )
    check_no_gradients(named.items())


def check_no_gradients(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise UsageError for a gradient that no engine.backward has computed: it would be added to its own."""
    with torch._C.DisableTorchFunctionSubclass():  # released parameters answer slowly otherwise
        holder = next((name for name, parameter in named if gradient_of(parameter) is not None), None)
    if holder is not None:
        raise UsageError(
            f"expected no gradient in {holder!r} before the engine's own, found one; call model.zero_grad()"
            " (the engine keeps its gradients elsewhere: p.grad stays None)"
        )


class Members:
    """The parameters that an engine was built with: the trained ones, and the frozen ones."""

    def __init__(self, trained: Sequence[ParamInfo], frozen: Sequence[ParamInfo]) -> None:
        self._known = frozenset(id(t.parameter) for t in (*trained, *frozen))
        self._frozen = [t for t in frozen if t.parameter.numel()]

    def check(self, model: nn.Module) -> None:
        """Raise UsageError for another parameter: it was added to the model, or replaced."""
        if all(id(parameter) in self._known for parameter in model.parameters()):
            return
        added = next(name for name, p in model.named_parameters() if id(p) not in self._known)
        raise UsageError(
            f"the parameter {added!r} was added to the model, or replaced, after build_engine; take it out,"
            " keep engine.state_dict(), build another engine on a model that has it, and load that state"
            f" there with its values as 'param.{added}'"
        )

    def check_frozen(self) -> None:
        """Raise UsageError for a parameter that requires a gradient, and was frozen at the build."""
        with torch._C.DisableTorchFunctionSubclass():  # released parameters answer slowly otherwise
            unfrozen = next((t.name for t in self._frozen if t.parameter.requires_grad), None)
        if unfrozen is not None:
            raise UsageError(
                f"the parameter {unfrozen!r} was frozen when the engine was built, and requires a gradient"
                " now; freeze it, or save a checkpoint, build an engine that trains it, and load that (what"
                " was trained at the build may be frozen and thawed between steps)"
            )
