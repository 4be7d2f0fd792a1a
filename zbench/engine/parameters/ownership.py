"""A parameter is trained by one engine at a time, and belongs to it until the engine is closed or gone."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from zbench.engine.parameters.owners import owner_of
from zbench.engine.parameters.released import gradient_of
from zbench.engine.parameters.replicated import ParamInfo
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
        found = next((name for name, parameter in named if gradient_of(parameter) is not None), None)
    if found is not None:
        raise UsageError(
            f"expected no gradient in {found!r} before the engine's own, found one; call model.zero_grad()"
            " (the engine keeps its gradients elsewhere: p.grad stays None)"
        )


class Members:
    """The parameters that an engine was built with: ids of the `trained` ones, and the frozen ones."""

    def __init__(self, trained: Sequence[ParamInfo], frozen: Sequence[ParamInfo]) -> None:
        self.trained, self._frozen = frozenset(id(t.parameter) for t in trained), frozen
        self._known = self.trained | {id(t.parameter) for t in frozen}

    def unfrozen(self) -> bool:
        """Whether a parameter that has never been trained requires a gradient now."""
        with torch._C.DisableTorchFunctionSubclass():  # released parameters answer slowly otherwise
            return any(t.parameter.requires_grad and t.parameter.numel() for t in self._frozen)

    def check(self, model: nn.Module) -> None:
        """Raise UsageError for another parameter: it was added to the model, or replaced."""
        if all(id(parameter) in self._known for parameter in model.parameters()):
            return
        added = next(name for name, p in model.named_parameters() if id(p) not in self._known)
        raise UsageError(
            f"the parameter {added!r} was added to the model, or replaced, after build_engine; give all new"
            ' ones to engine.optimizer.add_param_group({"params": [...]}), frozen ones too'
        )

    def gained(self, model: nn.Module, parameters: Iterable[nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the others among these parameters of the model, by name."""
        new = {id(p) for p in parameters} - self._known
        return {name: p for name, p in model.named_parameters() if id(p) in new}
