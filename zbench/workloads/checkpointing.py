"""Activation checkpointing of any model: each block computes its activations again in the backward pass.

A block is an entry of a module list, the outermost where lists are nested, or a module of a named class. Its
call goes through `torch.utils.checkpoint`; names of parameters and modules stay. `selective` keeps results of
matrix products, attention and convolutions: https://docs.pytorch.org/docs/stable/checkpoint.html.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from zbench.errors import UsageError

Mode = bool | Literal["selective"]
_KEPT = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
_KEPT_OPERATORS = frozenset(
    getattr(torch.ops.aten, name).default for name in _KEPT if hasattr(torch.ops.aten, name)
)


def context_of(mode: Mode) -> Callable[[], Any] | None:
    """Return torch's `context_fn` of selective checkpointing, or None."""
    return _selective if mode == "selective" else None


def checkpointed(model: nn.Module, mode: Mode, classes: Sequence[str] = ()) -> nn.Module:
    """Let each block of a model compute its activations again; `mode` False changes nothing.

    classes: names of the blocks' classes; empty: the entries of module lists. UsageError if there is none.
    """
    if mode is False:
        return model
    blocks = _blocks(model, classes)
    if not blocks:
        problem = f"has no module of {', '.join(classes)}" if classes else "has no list of blocks"
        raise UsageError(
            f"workload.activation_checkpointing: the model {problem}; name the classes of its blocks in"
            " workload.checkpointed_classes, or leave activation_checkpointing out"
        )
    members = {"checkpoint_context": context_of(mode)}
    for block in blocks:
        kind = type(block)
        block.__class__ = type(kind.__name__, (_Checkpointed, kind), members)
    return model


def _blocks(model: nn.Module, classes: Sequence[str]) -> list[nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    entries = {id(entry) for one in lists for entry in one if any(True for _ in entry.parameters())}
    blocks: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():  # an outer module comes before those in it
        chosen = type(module).__name__ in classes if classes else id(module) in entries
        if chosen and id(module) not in inside and not isinstance(module, nn.ModuleList | nn.Sequential):
            blocks.append(module)
            inside |= {id(inner) for inner in module.modules()}
    return blocks


class _Checkpointed:
    """Mixed into the class of a block: the hooks of its call run in the recomputation, too."""

    checkpoint_context: Any

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        call: Callable[..., Any] = super().__call__  # type: ignore[misc]
        if not torch.is_grad_enabled():
            return call(*arguments, **keywords)
        context = type(self).checkpoint_context  # of the class: a partial, which does not bind
        options = {} if context is None else {"context_fn": context}
        return checkpoint(call, *arguments, use_reentrant=False, **options, **keywords)


def _selective() -> tuple["_KeptOnly", "_KeptOnly"]:
    keeping, giving = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
    return _KeptOnly(keeping), _KeptOnly(giving)


class _KeptOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes kept operators to torch's mode, others by it: a gather differs when it is repeated."""

    def __init__(self, inner: TorchDispatchMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inner = inner

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator in _KEPT_OPERATORS:
            return self._inner.__torch_dispatch__(operator, types, args, kwargs)  # type: ignore[no-untyped-call]
        return operator(*args, **(kwargs or {}))


def _policy(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    is_kept = operator in _KEPT_OPERATORS
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
