"""A parameter is trained by one engine at a time, and belongs to it until the engine is closed or gone."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from zbench.engine.parameters.base import ParamInfo
from zbench.engine.parameters.released import gradient_of, owner_of
from zbench.errors import UsageError

NOT_DISTRIBUTED = (
    "the engine itself distributes the model that it trains; give build_engine the model, and use neither"
    " DistributedDataParallel nor FSDP"
)
_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def check_unused(model: nn.Module) -> None:
    """Raise UsageError for a model that something else distributes, for a module that takes no hooks,
    and for a parameter that another engine trains, or that holds a gradient.
    """
    for module in model.modules():
        if wrapper := _WRAPPERS.intersection(kind.__name__ for kind in type(module).__mro__):
            raise UsageError(f"{wrapper.pop()}: {NOT_DISTRIBUTED}")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(
                f"expected modules of Python, but {name!r} is a TorchScript module, which takes no hooks;"
                " build the engine on the module that was scripted (torch.compile works on it)"
            )
    named = dict(model.named_parameters())
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
            f"expected no gradient in {holder!r} before the engine's own, found one; call model.zero_grad()."
            " The engine keeps its gradients elsewhere, and p.grad stays None. DistributedDataParallel and"
            " FSDP leave gradients in p.grad, and cannot wrap the engine's model"
        )


class Members:
    """The parameters that an engine was built with: the trained ones, and the frozen ones."""

    def __init__(self, trained: Sequence[ParamInfo], frozen: Sequence[ParamInfo]) -> None:
        self._known = {id(t.parameter): t for t in (*trained, *frozen)}
        self._frozen = [t for t in frozen if t.parameter.numel()]

    def check(self, model: nn.Module) -> None:
        """Take over the names that the parameters have now. UsageError for another parameter: it was added to
        the model, or replaced; and for a name that belonged to one that is gone.
        """
        names = {id(p): name for name, p in model.named_parameters()}
        if added := next((name for key, name in names.items() if key not in self._known), None):
            raise UsageError(
                f"the parameter {added!r} was added to the model, or replaced, after build_engine; take it"
                " out and keep engine.state_dict(). Then build another engine on a model with the parameter,"
                f" and load the state with the parameter's values as 'param.{added}'"
            )
        renamed = [t for key, t in self._known.items() if names.get(key, t.name) != t.name]
        gone = {t.name for key, t in self._known.items() if key not in names} if renamed else set()
        if taken := gone.intersection(names.values()):
            raise UsageError(
                f"the parameter {min(taken)!r} was taken out of the model after build_engine, and another has"
                " its name now; put it back, or give the other another name"
            )
        for t in renamed:
            t.name = names[id(t.parameter)]

    def check_frozen(self) -> None:
        """Raise UsageError for a parameter that requires a gradient, and was frozen at the build."""
        with torch._C.DisableTorchFunctionSubclass():  # released parameters answer slowly otherwise
            unfrozen = next((t.name for t in self._frozen if t.parameter.requires_grad), None)
        if unfrozen is not None:
            raise UsageError(
                f"the parameter {unfrozen!r} was frozen when the engine was built, and requires a gradient"
                " now. Freeze it, or save a checkpoint, build an engine that trains it, and load the"
                " checkpoint. Only parameters that were trained at the build may be frozen and thawed"
            )
