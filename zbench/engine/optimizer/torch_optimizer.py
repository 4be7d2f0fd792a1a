"""The engine's optimizer as torch's schedulers and training loops know one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Never, Protocol

import torch
from torch import Tensor

from zbench.engine.optimizer.shard_optimizer import ParamGroup
from zbench.errors import UsageError

GROUPS_REFUSAL = (
    "param_groups = ...: the engine reads the groups that it was built with; change their values"
    " (group['lr'] = ...), or load a state with engine.load_state_dict"
)
_STATE_REFUSAL = (
    "optimizer.state: the engine keeps the moments in parts; read engine.first_moments() or"
    " engine.state_dict(), and replace them with engine.load_state_dict"
)


class SavedGroups(Protocol):
    """The part of an engine's state that knows which group of a state each optimizer group continues."""

    def saved_groups(self, state: Mapping[str, Tensor]) -> dict[int, int]: ...


class OptimizedEngine(Protocol):
    """What a torch optimizer does, done by an engine."""

    param_groups: list[ParamGroup]

    def step(self) -> object: ...
    def zero_grad(self) -> None: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...
    def checked_state(self) -> "SavedGroups": ...


class SchedulerOptimizer(torch.optim.Optimizer):
    """Shares the engine's parameter groups; what it does is the engine's."""

    _opt_called = True  # schedulers watch `step` here and cannot see the engine's: they need not warn

    def __init__(self, engine: OptimizedEngine) -> None:
        groups = engine.param_groups
        defaults = {key: value for key, value in groups[0].items() if key != "params"}
        super().__init__([group for group in groups if group["params"]], defaults)
        self.param_groups = groups
        self.state = _StateElsewhere()  # type: ignore[assignment]
        self._engine, self._runs_hooks = engine, False

    def __setattr__(self, name: str, value: object) -> None:
        """Raise UsageError for other groups or another state: no step would read them."""
        if name in ("param_groups", "state") and hasattr(self, "_engine"):
            raise UsageError(f"optimizer.{GROUPS_REFUSAL}" if name == "param_groups" else _STATE_REFUSAL)
        super().__setattr__(name, value)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the engine's step, as torch does after `closure`, which calls engine.backward; return its
        loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._runs_hooks = True  # torch has wrapped this method: it calls the hooks
        try:
            self._engine.step()
        finally:
            self._runs_hooks = False
        return loss

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Call the hooks on this optimizer's step before and after a step that the engine was asked for."""
        if self._runs_hooks:
            yield
            return
        for hook in tuple(self._optimizer_step_pre_hooks.values()):
            hook(self, (), {})
        yield
        for hook in tuple(self._optimizer_step_post_hooks.values()):
            hook(self, (), {})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the step that has begun."""
        self._engine.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return torch's `param_groups`, and engine.state_dict() as `state`: all ranks call it."""
        return {**super().state_dict(), "state": self._engine.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Resume from what `load_state_dict`, whose last call this is, was given."""
        if not all(isinstance(key, str) for key in state["state"]):
            raise UsageError(
                "load_state_dict: expected what engine.optimizer.state_dict() returned, got the state of"
                " another optimizer; engine.load_state_dict takes such tensors by name (exp_avg.NAME, ...)"
            )
        self._engine.load_state_dict(state["state"])
        for number, saved in self._engine.checked_state().saved_groups(state["state"]).items():
            values = {key: value for key, value in state["param_groups"][saved].items() if key != "params"}
            self.param_groups[number].update(values)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise UsageError: an engine trains what it was built with."""
        if hasattr(self, "_engine"):
            raise UsageError(
                "add_param_group: the engine trains what it was built with; save a checkpoint, build another"
                " engine (its `param_groups` name the group), and load the checkpoint"
            )
        super().add_param_group(param_group)  # torch's constructor adds those that are there


class _StateElsewhere(Mapping[Any, Never]):
    """Torch's `state` of an optimizer whose state is the engine's: without items, and every read is refused.
    So is the question whether it is empty: torch's checkpoints would then take a step without gradients.
    """

    def __getitem__(self, key: object) -> Never:
        raise UsageError(_STATE_REFUSAL)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> Never:
        raise UsageError(_STATE_REFUSAL)
