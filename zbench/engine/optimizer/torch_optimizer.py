"""The engine's optimizer as torch's schedulers and training loops know one."""

from collections.abc import Callable
from typing import Any

import torch

from zbench.engine.optimizer.shard_optimizer import ParamGroup
from zbench.errors import UsageError


class SchedulerOptimizer(torch.optim.Optimizer):
    """Shares the engine's parameter groups; what it does is the engine's."""

    _opt_called = True  # schedulers watch `step` here and cannot see the engine's: they need not warn

    def __init__(
        self, step: Callable[[], object], zero_grad: Callable[[], None], groups: list[ParamGroup]
    ) -> None:
        defaults = {key: value for key, value in groups[0].items() if key != "params"}
        super().__init__([group for group in groups if group["params"]], defaults)
        self.param_groups = groups
        self._step, self._zero_grad = step, zero_grad

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the step that has begun."""
        self._zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise UsageError: an engine trains what it was built with."""
        if hasattr(self, "_step"):
            raise UsageError(
                "add_param_group: the engine trains what it was built with; save a checkpoint, build another"
                " engine (its `param_groups` name the group), and load the checkpoint"
            )
        super().add_param_group(param_group)  # torch's constructor adds those that are there
