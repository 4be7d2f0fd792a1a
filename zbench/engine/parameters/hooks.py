"""All hooks on modules and on autograd, but for the one that `sharded_init` registers."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from zbench.engine.parameters.gathering import Gatherer
from zbench.engine.parameters.replicated import ParamInfo
from zbench.engine.parameters.sharded import ShardedGroup


class GradientHooks:
    """Passes every gradient to `accept(index, gradient)` when autograd has completed it, and leaves `p.grad`
    None.
    """

    def __init__(self, param_infos: Sequence[ParamInfo], accept: Callable[[int, Tensor], None]) -> None:
        self._accept = accept
        self._handles = [
            t.parameter.register_post_accumulate_grad_hook(partial(self._take, t.index))  # type: ignore[no-untyped-call]
            for t in param_infos
        ]

    def _take(self, index: int, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            self._accept(index, gradient)

    def after_backward(self) -> None:
        """Clean up after a backward, whether it succeeded or not."""

    def remove(self) -> None:
        """Unregister every hook."""
        for handle in self._handles:
            handle.remove()


class WatchedParameters(dict[str, nn.Parameter | None]):
    """A module's parameters; calls `touch` for each one that is read as an attribute, in forward or from
    outside.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter | None], touch: Callable[[nn.Parameter], None]
    ) -> None:
        super().__init__(parameters)
        self._touch = touch

    def __getitem__(self, name: str) -> nn.Parameter | None:
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._touch(parameter)
        return parameter


class GatherHooks(GradientHooks):
    """Also unshards groups when a module runs or a parameter is read, and again when backward needs them.

    A group that is read while none of its modules runs (a tied weight, a functional use) is kept to the end
    of the model's forward. What autograd saves of a group is replaced by a reference, so backward gathers
    only what it uses: the weight of an embedding, or a bias, is not gathered again.
    """

    def __init__(
        self,
        param_infos: Sequence[ParamInfo],
        accept: Callable[[int, Tensor], None],
        model: nn.Module,
        gatherer: Gatherer,
    ) -> None:
        super().__init__(param_infos, accept)
        self._gatherer = gatherer
        self._running: Counter[ShardedGroup] = Counter()
        self._outside: set[ShardedGroup] = set()
        self._saving: list[saved_tensors_hooks] = []
        self._owners = [m for m in model.modules() if self._groups_of(m)]
        for module in self._owners:
            module._parameters = WatchedParameters(module._parameters, self._touch)
            groups = self._groups_of(module)
            self._handles += [
                module.register_forward_pre_hook(partial(self._enter, groups, not list(module.children()))),
                module.register_forward_hook(partial(self._leave, groups), always_call=True),
            ]
        self._handles += [
            model.register_forward_pre_hook(self._begin, prepend=True),
            model.register_forward_hook(self._end, always_call=True),
        ]

    def _groups_of(self, module: nn.Module) -> list[ShardedGroup]:
        found = (self._gatherer.group_of.get(id(p)) for p in module._parameters.values())
        return list(dict.fromkeys(group for group in found if group is not None))

    def _touch(self, parameter: nn.Parameter) -> None:
        group = self._gatherer.group_of.get(id(parameter))
        if group is not None:
            self._gatherer.use(group)
            if not self._running[group]:
                self._outside.add(group)

    def _enter(self, groups: Sequence[ShardedGroup], leaf: bool, *_: object) -> None:
        self._running.update(groups)
        for group in groups if leaf else ():
            self._gatherer.use(group)

    def _leave(self, groups: Sequence[ShardedGroup], *_: object) -> None:
        self._running.subtract(groups)
        for group in groups:
            if group not in self._outside:
                self._gatherer.release(group)

    def _begin(self, *_: object) -> None:
        self._gatherer.begin_forward()
        self._saving.append(saved_tensors_hooks(self._gatherer.pack, self._gatherer.unpack))
        self._saving[-1].__enter__()

    def _end(self, *_: object) -> None:
        self._saving.pop().__exit__()
        self._let_go_outside()

    def _let_go_outside(self) -> None:
        outside, self._outside = self._outside, set()
        for group in outside:
            self._gatherer.release(group)

    def after_backward(self) -> None:
        self._outside.clear()
        self._running.clear()
        self._gatherer.release_all()

    def remove(self) -> None:
        super().remove()
        for module in self._owners:
            module._parameters = dict(module._parameters)
