"""Activations in host memory from their forward to their backward (`workload.offload_activations`).

What autograd saves of floating-point tensors is copied, whole storages once, whatever views of them are
saved; so strides stay, and with them the bits. Weights are saved as they are. Copies are made in the order of
the current stream: https://docs.pytorch.org/docs/stable/autograd.html#saved-tensors-hooks-doc.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

OnHost = Callable[[], AbstractContextManager[None]]


class _Copy:
    """A storage in host memory, and on the device again from its first use in a backward on."""

    def __init__(self, whole: Tensor, version: int, on_host: OnHost) -> None:
        self.source = weakref.ref(whole.untyped_storage())
        self.version = version
        self._device, self._is_near = whole.device, False
        with on_host():
            self._values = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=whole.is_cuda)
        self._values.copy_(whole, non_blocking=True)

    def whole(self) -> Tensor:
        """Return the whole storage on the device, flat."""
        if not self._is_near:
            near = torch.empty(self._values.shape, dtype=self._values.dtype, device=self._device)
            self._values = near.copy_(self._values, non_blocking=True)
            self._is_near = True
        return self._values


class _View(NamedTuple):
    """A tensor that was saved; those of one storage keep its copy alive."""

    copy: _Copy
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Offload:
    """Keeps what the body of `saving` saves in host memory. on_host: a context of its allocations there.

    leaves_weights: tells the engine to keep references to the weights that it gathers.
    """

    leaves_weights = True

    def __init__(self, on_host: OnHost = nullcontext) -> None:
        self._on_host = on_host
        self._copies: weakref.WeakValueDictionary[tuple[int, torch.dtype], _Copy] = (
            weakref.WeakValueDictionary()
        )

    def saving(self) -> saved_tensors_hooks:
        """Return the context of a forward."""
        return saved_tensors_hooks(self._pack, self._unpack)

    @torch.no_grad()
    def _pack(self, tensor: Tensor) -> Tensor | _View:
        base = tensor._base if tensor._is_view() else tensor
        if isinstance(base, nn.Parameter) or not tensor.is_floating_point():
            return tensor
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.dtype)
        copy = self._copies.get(key)
        if copy is None or copy.source() is not storage or copy.version != tensor._version:
            elements = storage.nbytes() // tensor.element_size()
            whole = tensor.detach().as_strided((elements,), (1,), 0)
            copy = self._copies[key] = _Copy(whole, tensor._version, self._on_host)
        offset = int(tensor.storage_offset())
        return _View(copy, tensor.size(), tensor.stride(), offset)

    @torch.no_grad()
    def _unpack(self, packed: Tensor | _View) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        return packed.copy.whole().as_strided(packed.size, packed.stride, packed.offset)
