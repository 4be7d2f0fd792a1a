"""Copies of modules that are made of fake tensors, as `copy.deepcopy` makes them of real ones."""

import copy
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

_OF_FAKES = frozenset(vars(FakeTensor).get("__annotations__", ())) | {"fake_mode", "fake_device", "constant"}
"""Attributes that make a tensor a fake one. The copy has its own, of the same mode."""


def as_real_to_deepcopy() -> AbstractContextManager[Any]:
    """Make `copy.deepcopy` of a fake tensor a parameter or a leaf of the same mode, as of a real tensor.

    torch's own copies the mode, too, and `Module.to` then refuses the parameter.
    """
    return patch.object(FakeTensor, "__deepcopy__", _copied, create=True)


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    if id(tensor) in memo:
        same: Tensor = memo[id(tensor)]
        return same
    if not tensor.is_leaf:
        raise RuntimeError("copy.deepcopy of a tensor that is no leaf; copy its detach()")
    with torch.no_grad():
        result = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        result = nn.Parameter(result, tensor.requires_grad)
    else:
        result.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = result
    for name, value in vars(tensor).items():
        if name not in _OF_FAKES and name not in vars(result):
            setattr(result, name, value if isinstance(value, Tensor) else copy.deepcopy(value, memo))
    return result
