"""What a simulation can know of values: whole numbers that follow from shapes and from the micro-batch."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

_LARGEST = 1 << 22  # elements
_WHOLE = frozenset({torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_ATTRIBUTE = "_zbench_value"
_FACTORIES = frozenset(
    {
        torch.ops.aten.arange.default,
        torch.ops.aten.arange.start,
        torch.ops.aten.arange.start_step,
        torch.ops.aten.full.default,
        torch.ops.aten.ones.default,
        torch.ops.aten.zeros.default,
        torch.ops.aten.scalar_tensor.default,
    }
)


def set_value(tensor: Tensor, value: Tensor) -> None:
    """Note the value of a fake tensor."""
    setattr(tensor, _ATTRIBUTE, value)


def value_of(tensor: Tensor) -> Tensor | None:
    """Return a fake tensor's value, where it is known."""
    return tensor.__dict__.get(_ATTRIBUTE)


def follow(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Compute the value of `out` too, where it is a small tensor of whole numbers that are known."""
    if not isinstance(out, Tensor) or out.dtype not in _WHOLE or out.numel() > _LARGEST:
        return
    given = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
    if not given and func not in _FACTORIES:
        return
    if any(value_of(x) is None for x in given):
        out.__dict__.pop(_ATTRIBUTE, None)
        return
    with _disable_current_modes():
        known = tree_map(lambda x: value_of(x) if isinstance(x, Tensor) else x, (args, kwargs))
        set_value(out, func(*known[0], **known[1]))
