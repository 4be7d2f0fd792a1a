"""The engine's optimizer as torch's schedulers and training loops know one, and groups added to it."""

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zbench.engine.adam.contract import check_hyper, hyper_of
from zbench.engine.optimizer.shard_optimizer import ParamGroup
from zbench.errors import UsageError

_OF_SCHEDULERS = {"params", "initial_lr", "name"}


class SchedulerOptimizer(torch.optim.Optimizer):
    """Shares the engine's parameter groups; what it does is the engine's."""

    _opt_called = True  # schedulers watch `step` here and cannot see the engine's: they need not warn

    def __init__(
        self,
        step: Callable[[], object],
        zero_grad: Callable[[], None],
        add_param_group: Callable[[Mapping[str, Any]], None],
        groups: list[ParamGroup],
    ) -> None:
        defaults = {key: value for key, value in groups[0].items() if key != "params"}
        super().__init__([group for group in groups if group["params"]], defaults)
        self.param_groups = groups
        self._step, self._zero_grad, self._add_param_group = step, zero_grad, add_param_group

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the step that has begun."""
        self._zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters from the next step on; a collective, between steps."""
        if hasattr(self, "_step"):
            self._add_param_group(param_group)
        else:  # torch's constructor adds those that are there
            super().add_param_group(param_group)


def make_group(
    model: nn.Module, trained: Container[int], defaults: Mapping[str, Any], given: Mapping[str, Any]
) -> ParamGroup:
    """Return `given` with `defaults` for what it leaves out; UsageError if it cannot become a group.

    trained: the ids of parameters that are trained already, or have been.
    """
    parameters = given.get("params", ())
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    names = {id(p): name for name, p in model.named_parameters()}
    for p in parameters:
        if id(p) not in names:
            raise UsageError(
                "add_param_group: expected parameters of the engine's model, got"
                f" {'one of something else' if isinstance(p, nn.Parameter) else type(p).__name__}; register"
                " new modules with the model first"
            )
        if id(p) in trained:
            raise UsageError(f"add_param_group: {names[id(p)]!r} is trained already, in another group")
    if not parameters or len({id(p) for p in parameters}) < len(parameters):
        raise UsageError("add_param_group: expected at least one parameter under 'params', each once")
    unknown = sorted(given.keys() - defaults.keys() - _OF_SCHEDULERS)
    if unknown:
        raise UsageError(
            f"add_param_group: expected some of {', '.join(sorted(defaults))}, got {unknown[0]!r}"
        )
    group = {**defaults, **given, "params": parameters}
    try:
        check_hyper(hyper_of(group))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"add_param_group: {error!r}") from error
    return group


@contextmanager
def appended(groups: list[ParamGroup], added: ParamGroup) -> Iterator[None]:
    """Take `added`'s parameters out of the other groups, where they were frozen, and append it; as before if
    the block raises.
    """
    before = [group["params"] for group in groups]
    moved = {id(p) for p in added["params"]}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in moved]
    groups.append(added)
    try:
        yield
    except BaseException:
        groups.pop()
        for group, parameters in zip(groups, before, strict=True):
            group["params"] = parameters
        raise
