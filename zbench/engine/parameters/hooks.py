"""What the engine attaches to a model: gradient hooks, state-dict hooks, and forwards that gather."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial, update_wrapper
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from zbench.engine.parameters.base import ParamInfo
from zbench.engine.parameters.gathering import Gatherer, explain_torch_func
from zbench.engine.parameters.handed_out import Stale, stale_error
from zbench.engine.parameters.leaves import LeafModules
from zbench.engine.parameters.ownership import NOT_DISTRIBUTED
from zbench.engine.parameters.released import take_gradient
from zbench.engine.parameters.saved import uncompiled
from zbench.engine.parameters.sharded import ShardedGroup
from zbench.errors import UsageError

Note = Callable[[nn.Parameter, Tensor, str], None]
"""Takes a parameter, its tensor in a `state_dict`, and the key."""

_READ_BY_DDP = "_ddp_params_and_buffers_to_ignore"


class GradientHooks:
    """Passes every gradient to `accept(index, gradient)` once it is accumulated; resets `p.grad`."""

    def __init__(
        self,
        param_infos: Sequence[ParamInfo],
        accept: Callable[[int, Tensor], None],
        model: nn.Module,
        note_handed_out: Note,
        gatherer: Gatherer | None = None,
    ) -> None:
        """note_handed_out: is told what a `state_dict` has for each parameter."""
        self._model, self._param_infos, self._accept = model, param_infos, accept
        self._gatherer_of_states, self._note_handed_out = gatherer, note_handed_out
        self._handles: list[Any] = []
        self._taking: list[tuple[ParamInfo, int]] = []

    def attach(self) -> None:
        """Register every hook; what an error leaves registered, `remove` takes off."""
        vars(self._model)[_READ_BY_DDP] = _NoDistributedDataParallel()
        for t in self._param_infos:
            handle = _hooked(t.parameter, partial(self._take, t.index))
            self._handles.append(handle)
            self._taking.append((t, handle.id))
        for handle in _state_hooks(self._model.modules(), self._note_handed_out, self._gatherer_of_states):
            self._handles.append(handle)

    def begin(self, *, only: bool) -> None:
        """Begin a backward; `only`: it is the step's only one, as far as is known. Gradients are taken after
        the user's hooks. UsageError if a step has several backwards: torch's hooks would see their sum.
        """
        with torch._C.DisableTorchFunctionSubclass():  # released parameters answer slowly otherwise
            registered = [(t, key, t.parameter._post_accumulate_grad_hooks) for t, key in self._taking]
        for info, key, hooks in registered:
            if len(hooks) > 1:
                if not only:
                    raise UsageError(
                        f"expected no post-accumulate-grad hook on {info.name!r} in a step of several"
                        " backwards: it would see one backward's gradient, not their sum; remove the hook, or"
                        " call engine.step() after each backward"
                    )
                hooks[key] = hooks.pop(key)

    def _take(self, index: int, parameter: nn.Parameter) -> None:
        gradient = take_gradient(parameter)
        if gradient is None:
            return
        if gradient.layout != torch.strided:
            name = next(info.name for info, _ in self._taking if info.index == index)
            raise UsageError(
                f"expected a dense gradient of {name!r}, got a sparse one, which Adam does not take; build"
                " the embedding with sparse=False"
            )
        self._accept(index, gradient)

    def running(self) -> AbstractContextManager[None]:
        """Return a context around a backward; UsageError if another thread uses the gathered weights."""
        return nullcontext()

    def after_backward(self) -> None:
        """End a backward, whether it returned or raised."""

    def remove(self) -> None:
        """Unregister every hook."""
        vars(self._model).pop(_READ_BY_DDP, None)
        for handle in self._handles:
            handle.remove()


def _hooked(parameter: nn.Parameter, hook: Callable[[nn.Parameter], None]) -> Any:
    """Register a hook on a parameter's gradient, also on a parameter that is frozen now."""
    required = parameter.requires_grad
    parameter.requires_grad_(True)
    handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(required)
    return handle


class WatchedParameters(dict[str, nn.Parameter | None]):
    """A module's parameters. `touch` is called for each parameter that is read as an attribute, inside
    forward or outside. Compiled code reads them without it where they are `held` by running forwards, and is
    left elsewhere.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter | None], touch: Callable[[nn.Parameter], None]
    ) -> None:
        super().__init__(parameters)
        self._touch = touch
        self.held = 0

    def __getitem__(self, name: str) -> nn.Parameter | None:
        parameter = super().__getitem__(name)
        if parameter is not None and not (self.held and torch.compiler.is_compiling()):
            self._touch(parameter)
        return parameter

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are ordinary dicts: they belong to no engine."""
        return dict, (dict(self),)


class GatheredForward:
    """The `forward` of a module: its groups stay gathered while it runs, whatever ends it.

    A module without children, a `leaf` or a block has them gathered when it begins; another, when it reads
    them. A compiled module reads them unseen, and has them gathered when it begins. block: it and the modules
    below it, which have no such forward of their own.
    """

    def __init__(
        self,
        module: nn.Module,
        number: int,
        gatherer: Gatherer,
        *,
        leaf: LeafModules | None = None,
        block: Sequence[nn.Module] = (),
    ) -> None:
        self._was_set = "forward" in vars(module)
        self._set = module.forward
        self._module, self._number, self._gatherer = module, number, gatherer
        self._leaf = leaf
        owned = [m._parameters for m in block or (module,)]
        self._watched = [parameters for parameters in owned if isinstance(parameters, WatchedParameters)]
        members = (p for parameters in owned for p in parameters.values())
        self._groups = gatherer.groups_of(module.parameters() if leaf else members)
        self._whole = leaf is not None or bool(block) or not any(True for _ in module.children())
        self.closed = False
        update_wrapper(self, self._set)
        self.__code__ = type(self).__call__.__code__  # torch.export looks for it
        module.forward = self

    @property
    def _inner(self) -> Callable[..., Any]:
        """The module's own forward: what was set on it, else what its class has now."""
        return self._set if self._was_set else own_forward(self._module)

    @partial(uncompiled, calls=True)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.closed:
            return self._inner(*args, **kwargs)
        gatherer, groups = self._gatherer, self._groups
        recomputes = torch._C._current_graph_task_id() >= 0  # what a checkpoint forgot: its graph is not used
        leaf = self._leaf if torch.is_grad_enabled() and not recomputes else None
        watch = leaf.watch(self._module, (args, kwargs)) if leaf else None
        compiled = get_eval_frame_callback() is not None
        gatherer.enter(self._number)
        for watched in self._watched if compiled else ():
            watched.held += 1
        try:
            gatherer.begin_use(groups, gather=self._whole or compiled)
            outputs = self._inner(*args, **kwargs)
        except RuntimeError as error:
            explain_torch_func(error)
            raise
        finally:
            for watched in self._watched if compiled else ():
                watched.held -= 1
            try:
                gatherer.end_use(groups)
            finally:
                gatherer.leave()
        if watch:
            watch(outputs)
        return outputs

    def remove(self) -> None:
        """Give the module its own forward back; where somebody has wrapped this one, only call through."""
        self.closed = True
        if vars(self._module).get("forward") is self:
            if self._was_set:
                self._module.forward = self._inner
            else:
                del self._module.forward

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self._module))
        if self._was_set or copied is None:
            return deepcopy(self._inner, memo)
        return own_forward(copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return own_forward, (self._module,)


def own_forward(module: nn.Module) -> MethodType:
    """Return the forward of a module's class, bound to it: what copies and pickles of a module get."""
    return MethodType(type(module).forward, module)


class GatherHooks(GradientHooks):
    """Also has groups gathered when a module runs or a parameter is read, and again when backward needs them.

    What autograd saves of a group is replaced by a reference, so backward gathers no more than it uses: an
    embedding's weight, or a bias, is not gathered again.
    """

    def __init__(
        self,
        param_infos: Sequence[ParamInfo],
        accept: Callable[[int, Tensor], None],
        model: nn.Module,
        gatherer: Gatherer,
        leaves: LeafModules,
        blocks: Collection[nn.Module] = (),
    ) -> None:
        super().__init__(param_infos, accept, model, gatherer.note_handed_out, gatherer)
        self._gatherer, self._leaves, self._blocks = gatherer, leaves, blocks
        self._owners: list[nn.Module] = []
        self._forwards: list[GatheredForward] = []

    def attach(self) -> None:
        super().attach()
        gatherer = self._gatherer
        leaves = self._leaves
        modules = list(enumerate(self._model.modules()))
        for _, module in modules:
            if any(p is not None for p in module._parameters.values()):
                module._parameters = WatchedParameters(module._parameters, gatherer.touch)
                self._owners.append(module)
        blocks = self._modules_of_blocks()
        inside = {
            below for block, modules_below in blocks.items() for below in modules_below if below != block
        }
        for k, module in modules:
            leaf = leaves if module in leaves.modules else None
            block = blocks.get(module, ())
            owns = module not in inside and gatherer.groups_of(module._parameters.values())
            if k == 0 or leaf or block or owns:
                self._forwards.append(GatheredForward(module, k, gatherer, leaf=leaf, block=block))

    def _modules_of_blocks(self) -> dict[nn.Module, list[nn.Module]]:
        """Return the modules of each block, without those of leaf modules, which are gathered apart."""
        of_leaves = {below for leaf in self._leaves.modules for below in leaf.modules()}
        blocks = [block for block in self._blocks if block not in of_leaves]
        return {block: [m for m in block.modules() if m not in of_leaves] for block in blocks}

    def running(self) -> AbstractContextManager[None]:
        return self._gatherer.user

    def after_backward(self) -> None:
        self._gatherer.release_all()

    def remove(self) -> None:
        super().remove()
        for forward in reversed(self._forwards):
            forward.remove()
        for module in self._owners:
            module._parameters = dict(module._parameters)


def _state_hooks(
    modules: Iterable[nn.Module], note_handed_out: Note, gatherer: Gatherer | None
) -> Iterator[Any]:
    """Yield hooks on `state_dict` and `load_state_dict` of every module. With a `gatherer` these gather the
    module's parameters meanwhile, and are collective. A loaded value is an edit between steps like any other.
    """
    refuse = _Hook(_refuse_assignment)
    for module in modules:
        yield module.register_load_state_dict_pre_hook(refuse)  # type: ignore[no-untyped-call]
        if groups := gatherer.groups_of(module._parameters.values()) if gatherer else []:
            assert gatherer is not None
            fetch = _Hook(partial(_each, gatherer.fetch, groups))
            release = _Hook(partial(_each, gatherer.release, groups))
            yield module.register_state_dict_pre_hook(fetch)  # type: ignore[no-untyped-call]
            yield module.register_state_dict_post_hook(release)  # type: ignore[no-untyped-call]
            yield module.register_load_state_dict_pre_hook(fetch)  # type: ignore[no-untyped-call]
            yield module.register_load_state_dict_post_hook(release)  # type: ignore[no-untyped-call]
        note = _Hook(partial(_note, note_handed_out))
        yield module.register_state_dict_post_hook(note)  # type: ignore[no-untyped-call]


def _note(
    note_handed_out: Note, module: nn.Module, state: Mapping[str, object], prefix: str, *_: object
) -> None:
    for name, parameter in module._parameters.items():
        value = state.get(prefix + name)
        if parameter is not None and type(value) is Tensor:
            note_handed_out(parameter, value, prefix + name)


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


def _refuse_assignment(
    module: nn.Module, state: Mapping[str, object], prefix: str, metadata: Any, *_: object
) -> None:
    for name in module._parameters:
        if isinstance(value := state.get(prefix + name), Stale):
            raise stale_error(value)
    if metadata.get("assign_to_params_buffers"):
        raise UsageError(
            "load_state_dict(assign=True) would replace the parameters that the engine trains; use"
            " assign=False"
        )
    if torch.__future__.get_swap_module_params_on_conversion():
        raise UsageError(
            "load_state_dict would swap the parameters that the engine trains; call"
            " torch.__future__.set_swap_module_params_on_conversion(False)"
        )


class _NoDistributedDataParallel:
    """In a model where `DistributedDataParallel` looks for names to ignore: raises. Copies have no names."""

    def __iter__(self) -> Iterator[str]:
        raise UsageError(f"DistributedDataParallel(model): {NOT_DISTRIBUTED}")

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def _each(act: Callable[[ShardedGroup], None], groups: Sequence[ShardedGroup], *_: object) -> None:
    for group in groups:
        act(group)


def _nothing(*_: object) -> None:
    return
