"""The engine's optimizer as torch's schedulers and training loops know one."""

from collections.abc import Callable
from typing import Any

import torch

from zbench.engine.optimizer.shard_optimizer import BUILD_ANEW, ParamGroup
from zbench.errors import UsageError


class SchedulerOptimizer(torch.optim.Optimizer):
    """Shares the engine's parameter groups; its `step` and `zero_grad` are the engine's."""

    _opt_called = True  # schedulers watch `step` here and cannot see the engine's: they need not warn

    def __init__(
        self, step: Callable[[], object], zero_grad: Callable[[], None], groups: list[ParamGroup]
    ) -> None:
        defaults = {key: value for key, value in groups[0].items() if key != "params"}
        super().__init__([group for group in groups if group["params"]], defaults)
        self.param_groups, self._step, self._zero_grad = groups, step, zero_grad

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the step that has begun."""
        self._zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only torch's constructor may: UsageError afterwards, and nothing has changed."""
        if hasattr(self, "_step"):
            raise UsageError(
                "param_groups: expected the groups that the engine was built with; " + BUILD_ANEW
            )
        super().add_param_group(param_group)
