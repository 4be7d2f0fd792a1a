"""What a parameter is while its values are elsewhere: it can be described, and refuses everything else.

A parameter changes its class, not its identity: it stays the same `nn.Parameter` object to optimizers, hooks
and containers. While it is whole its class only watches `p.data`, the one alias that torch's version counter
does not see. A released one answers questions about its shape, dtype, gradient and hooks through
`__torch_function__`, where torch brings every other operation, and raises UsageError there. A parameter
belongs to one engine until that is closed or gone (`owner_of`).
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import new_class
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.fx.experimental import proxy_tensor
from torch.utils.weak import WeakIdKeyDictionary

from zbench.engine.transport.buffers import share_storage
from zbench.errors import UsageError

PART = "_zbench_part"
"""Attribute of a parameter that has no engine yet: what this rank keeps of its values."""

_REFUSAL = "_zbench_refusal"
_READ = "_zbench_data_was_read"
_BASE: Any = torch._C.TensorBase

_ATTRIBUTES = (
    "shape dtype device layout ndim nbytes itemsize names name requires_grad grad grad_fn is_leaf"
    " retains_grad output_nr _version _backward_hooks _post_accumulate_grad_hooks _grad _grad_fn _base"
    " grad_dtype is_cpu is_cuda is_meta is_sparse is_sparse_csr is_quantized is_nested is_mkldnn is_mps"
    " is_xpu is_xla is_mtia"
)
_SETTABLE = "requires_grad grad _backward_hooks _post_accumulate_grad_hooks grad_dtype"
_METHODS = (
    "size dim ndimension numel nelement element_size get_device is_floating_point is_complex is_signed"
    " is_inference is_same_size has_names __len__ _is_view requires_grad_ register_hook retain_grad"
    " register_post_accumulate_grad_hook new_empty new_zeros new_ones new_full new_tensor"
)
_FUNCTIONS = (
    "numel is_floating_point is_complex is_signed is_same_size result_type empty_like zeros_like ones_like"
    " full_like rand_like randn_like randint_like _has_compatible_shallow_copy_type"
)
_STRIDED = frozenset({Tensor.stride, Tensor.is_contiguous, Tensor.storage_offset})


def _of(owner: object, names: str, kind: str | None = None) -> set[Callable[..., Any]]:
    members = [getattr(owner, name) for name in names.split() if hasattr(owner, name)]
    return {getattr(each, kind) if kind else each for each in members}


DESCRIBE = frozenset(
    _of(Tensor, _ATTRIBUTES, "__get__")
    | _of(Tensor, _SETTABLE, "__set__")
    | _of(Tensor, _METHODS)
    | _of(torch, _FUNCTIONS)
)
"""What torch may ask of a tensor whose values are not here."""


class Trained(nn.Parameter):
    """A parameter that an engine trains: while a step is under way its gradient is the engine's alone.

    So what torch would do to `p.grad` there, and what would silently do nothing, is refused: clipping it,
    dropping it, or updating from it with another optimizer.
    """

    @property
    def grad(self) -> Tensor | None:
        _check_not_held(self)
        return gradient_of(self)

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        _check_not_held(self)
        _BASE.grad.__set__(self, gradient)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def _use_count(self) -> NoReturn:
        """Refuse `torch.utils.swap_tensors`, which asks for this before it changes anything."""
        raise UsageError(
            "swap_tensors would replace a parameter that the engine trains: change its values instead,"
            " p.data.copy_(values) (or call torch.__future__.set_swap_module_params_on_conversion(False))"
        )


def _check_not_held(parameter: nn.Parameter) -> None:
    if torch.compiler.is_compiling():
        return
    owner = owner_of(parameter)
    if owner is not None and owner.holds_gradients:
        raise UsageError(
            "p.grad: the engine holds the gradients of the step that has begun; to clip them, set"
            " gradient_clipping. To drop gradients, call engine.zero_grad(). To see gradients, register a"
            " hook, or read the norm that engine.step(grad_norm=True) returns. To update, call engine.step()"
        )


gradient_of: Callable[[nn.Parameter], Tensor | None] = _BASE.grad.__get__
"""Return what `p.grad` is to autograd, for the engine's own use: the slot itself, as it is called often."""


def take_gradient(parameter: nn.Parameter) -> Tensor | None:
    """Return what autograd left in `p.grad`, and leave None there."""
    kind = type(parameter)
    if not issubclass(kind, Released):
        gradient = gradient_of(parameter)
        _BASE.grad.__set__(parameter, None)
        return gradient
    parameter.__class__ = kinds_of(parameter).original  # its own class answers slowly
    gradient, parameter.grad = parameter.grad, None
    parameter.__class__ = kind
    return gradient


class Whole(Trained):
    """A parameter whose values are here. Notes when `p.data` is handed out or replaced."""

    @property
    def data(self) -> Tensor:
        data_is_read(self)
        if torch.compiler.is_compiling():
            values: Tensor = _BASE.data.__get__(self)
            return values
        return _alias_of(self).detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        present: Tensor = _BASE.data.__get__(self)
        if values.shape != present.shape or values.dtype != present.dtype or values.device != present.device:
            raise UsageError(
                f"p.data = values: expected {present.dtype} of shape {list(present.shape)} on"
                f" {present.device}, as the engine keeps it, got {values.dtype} of shape"
                f" {list(values.shape)} on {values.device}; convert or move the model before build_engine"
            )
        shares = share_storage(values, present)  # p.data = p.data.t()
        if not torch.compiler.is_compiling():
            present = _alias_of(self)
        present.copy_(values.clone() if shares else values)
        data_is_read(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            values = _BASE.data.__get__(self).clone(memory_format=torch.preserve_format)
            memo[id(self)] = nn.Parameter(values, self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied


# make_fx takes an nn.Parameter, but no subclass
proxy_tensor.HANDLED_TYPES += (Trained, Whole)  # type: ignore[assignment]


class Released(Trained):
    """A parameter whose values are not here."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in DESCRIBE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func in (Tensor.__repr__, Tensor.__format__):
            return _described(args[0])
        if func in _STRIDED:
            with torch._C.DisableTorchFunctionSubclass():
                like = torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
                return func(like, *args[1:], **(kwargs or {}))
        if func == _BASE.data.__set__ and args[0] is args[1]:  # of what `to` has returned
            return None
        return cls._refuse(func, args, kwargs or {})

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the parameter itself where nothing changes, so that model.to(device) does nothing then."""
        with torch._C.DisableTorchFunctionSubclass():
            like = torch.empty([0] * self.ndim, dtype=self.dtype, device=self.device)
            changes = like.to(*args, **kwargs) is not like
        return super().to(*args, **kwargs) if changes else self

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) in memo or not hasattr(self, PART):
            copied: nn.Parameter = super().__deepcopy__(memo)  # type: ignore[no-untyped-call]
            return copied
        kind = type(self)
        copied = memo[id(self)] = kinds_of(self).original(memory_of(self), self.requires_grad)
        release(copied, kind, memory_of(self))
        setattr(copied, PART, getattr(self, PART).clone())
        set_refusal(copied, getattr(self, _REFUSAL))
        return copied

    @classmethod
    def _refuse(cls, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        refuse(func, args, kwargs)


class Left(Released):
    """A parameter that a closed engine has left behind: `p.data = values` makes it an ordinary one again."""

    @classmethod
    def _refuse(cls, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func != _BASE.data.__set__:
            refuse(func, args, kwargs)
        parameter, values = args
        parameter.__class__ = kinds_of(parameter).original
        delattr(parameter, _REFUSAL)
        parameter.data = values


def refuse(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoReturn:
    """Raise UsageError for an operation on a released parameter among its arguments; in `torch.compile`, what
    has it not compile that.
    """
    pending: list[Any] = [*args, *kwargs.values()]
    text = "the values of this parameter are not on this rank now"
    while pending:
        value = pending.pop(0)
        if isinstance(value, Released):
            text = getattr(value, _REFUSAL, text)
            break
        pending += value if isinstance(value, list | tuple) else []
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        name = f"its attribute {getattr(getattr(func, '__self__', None), '__name__', '')!r}".rstrip()
    if torch.compiler.is_compiling():  # break the graph: what is not compiled gathers
        raise torch._dynamo.exc.Unsupported(text, "zbench")
    raise UsageError(f"{text} (refused: {name})")


def _described(parameter: nn.Parameter) -> str:
    with torch._C.DisableTorchFunctionSubclass():
        shape = list(parameter.shape)
        dtype = parameter.dtype
        grad = parameter.requires_grad
    return f"(values not on this rank now, shape={shape}, dtype={dtype}, requires_grad={grad})"


@dataclass(frozen=True, slots=True)
class Kinds:
    """The classes that a parameter of the class `original` takes in turn."""

    original: type[nn.Parameter]
    trained: type[nn.Parameter]
    whole: type[nn.Parameter]
    released: type[nn.Parameter]
    left: type[nn.Parameter]


@cache
def _kinds(original: type[nn.Parameter]) -> Kinds:
    if original is nn.Parameter:
        return Kinds(original, Trained, Whole, Released, Left)

    def derived(kind: type[nn.Parameter]) -> type[nn.Parameter]:
        name = f"{kind.__name__}{original.__name__}"
        subclass = new_class(name, (kind, original), {}, lambda body: body.update(_zbench_original=original))
        assert issubclass(subclass, nn.Parameter)
        return subclass

    return Kinds(original, derived(Trained), derived(Whole), derived(Released), derived(Left))


def kinds_of(parameter: nn.Parameter) -> Kinds:
    """Return the classes of a parameter, whichever it has now."""
    kind = type(parameter)
    if kind in (Trained, Whole, Released, Left):
        return _kinds(nn.Parameter)
    return _kinds(getattr(kind, "_zbench_original", kind))


def set_refusal(parameter: nn.Parameter, text: str) -> None:
    """Say what a refused operation on this parameter tells its user."""
    setattr(parameter, _REFUSAL, text)


def set_values(parameter: nn.Parameter, kind: type[nn.Parameter], values: Tensor) -> None:
    """Give the parameter the class `kind`, and `values` as its memory."""
    parameter.__class__ = kind
    show(parameter, values)


def show(parameter: nn.Parameter, values: Tensor) -> None:
    """Give a parameter whose values are here `values` as its memory."""
    forget_data(parameter)
    _BASE.data.__set__(parameter, values)


def memory_of(parameter: nn.Parameter) -> Tensor:
    """Return the memory behind a parameter, whatever it holds; for the engine's own use."""
    with torch._C.DisableTorchFunctionSubclass():
        values: Tensor = _BASE.data.__get__(parameter)
    return values


def release(parameter: nn.Parameter, kind: type[nn.Parameter], nowhere: Tensor) -> None:
    """Give the parameter the released class `kind`, and `nowhere`, of its shape, as its memory."""
    forget_data(parameter)
    parameter.__class__ = kinds_of(parameter).original
    _BASE.data.__set__(parameter, nowhere)
    parameter.__class__ = kind


def data_is_read(parameter: nn.Parameter) -> None:
    """Note that the values of a parameter in an engine may be changed by way of another tensor."""
    if isinstance(parameter, Trained):
        setattr(parameter, _READ, True)


def data_was_read(parameter: nn.Parameter) -> bool:
    """Return whether `p.data` has been handed out since the last call."""
    return parameter.__dict__.pop(_READ, False) is True


_aliases: MutableMapping[nn.Parameter, tuple[Tensor, int]] = WeakIdKeyDictionary()
"""Of each parameter whose `data` was handed out: a tensor that has its version in common with what was handed
out, and the version when `data_was_written` was last called.
"""


def _alias_of(parameter: nn.Parameter) -> Tensor:
    if parameter not in _aliases:
        values = _BASE.data.__get__(parameter)
        _aliases[parameter] = values, values._version
    return _aliases[parameter][0]


def data_was_written(parameter: nn.Parameter) -> bool:
    """Return whether an operation of torch has written to a `p.data` since the last call."""
    if parameter not in _aliases:
        return False
    alias, version = _aliases[parameter]
    _aliases[parameter] = alias, alias._version
    return alias._version != version


def forget_data(parameter: nn.Parameter) -> None:
    """The parameter leaves its memory: nothing that was handed out shows it any more."""
    _aliases.pop(parameter, None)


class Owner(Protocol):
    """An engine. holds_gradients: a step has begun, and its gradients are with the engine."""

    @property
    def closed(self) -> bool: ...
    @property
    def holds_gradients(self) -> bool: ...


_owners: dict[int, weakref.ref[Owner]] = {}  # by id: an open engine keeps its parameters alive


def own(parameters: Iterable[nn.Parameter], engine: Owner) -> None:
    """Note that these parameters belong to `engine`."""
    for key in [key for key, owner in _owners.items() if owner() is None]:
        del _owners[key]
    _owners.update((id(parameter), weakref.ref(engine)) for parameter in parameters)


def owner_of(parameter: nn.Parameter) -> Owner | None:
    """Return the open engine that a parameter belongs to, or None."""
    reference = _owners.get(id(parameter))
    owner = None if reference is None else reference()
    return None if owner is None or owner.closed else owner
