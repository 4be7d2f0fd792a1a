"""What makes `model.state_dict()` and `model.load_state_dict()` see whole parameters: torch's own hooks."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import nn

from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.sharded import ShardedGroup
from zbench.errors import UsageError


class StateHooks:
    """Hooks on every module of a model; with a `gatherer`, a module's parameters are gathered meanwhile.

    Both calls are then collective. A loaded value reaches the master weights like any edit between steps.
    """

    def __init__(self, modules: Iterable[nn.Module], gatherer: Gatherer | None) -> None:
        self._handles: list[Any] = []
        refuse = _Hook(_refuse_assignment)
        for module in modules:
            self._handles.append(module.register_load_state_dict_pre_hook(refuse))  # type: ignore[no-untyped-call]
            groups = gatherer.groups_of(module._parameters.values()) if gatherer else []
            if gatherer is None or not groups:
                continue
            fetch = _Hook(partial(_each, gatherer.fetch, groups))
            release = _Hook(partial(_each, gatherer.release, groups))
            self._handles += [
                module.register_state_dict_pre_hook(fetch),  # type: ignore[no-untyped-call]
                module.register_state_dict_post_hook(release),  # type: ignore[no-untyped-call]
                module.register_load_state_dict_pre_hook(fetch),  # type: ignore[no-untyped-call]
                module.register_load_state_dict_post_hook(release),  # type: ignore[no-untyped-call]
            ]

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()


class _Hook:
    """A hook that copies of a module do not take over: they belong to no engine."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_nothing,)


def _refuse_assignment(module: nn.Module, state: object, prefix: str, metadata: Any, *_: object) -> None:
    if metadata.get("assign_to_params_buffers"):
        raise UsageError(
            "load_state_dict(assign=True) would replace the parameters that the engine trains; use"
            " assign=False"
        )


def _each(act: Callable[[ShardedGroup], None], groups: Sequence[ShardedGroup], *_: object) -> None:
    for group in groups:
        act(group)


def _nothing(*_: object) -> None:
    return
