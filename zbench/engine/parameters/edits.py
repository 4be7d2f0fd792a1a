"""Edits of parameters that torch's version counter does not see: by collectives, and by other tensors."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from zbench.engine.parameters.base import Parameters
from zbench.engine.partition import Extent
from zbench.engine.transport.buffers import storage_of

_LINE, _PAGE = 64, 4096  # bytes
_WRITING = ("all", "_allgather", "broadcast", "gather", "recv", "reduce", "_reduce_scatter", "scatter")


_stores: WeakSet[Parameters] = WeakSet()


def watch_collectives(store: Parameters) -> None:
    """Tell `store` of every collective, of any caller, that writes into a tensor: the key of its storage."""
    for name in dir(ProcessGroup):  # all that begin so write into their first argument
        method = getattr(ProcessGroup, name)
        if name.startswith(_WRITING) and not hasattr(method, "__wrapped__"):
            setattr(ProcessGroup, name, _watched(method))
    _stores.add(store)


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        _, written, *_ = *args, *kwargs.values()
        for tensor in _tensors(written):
            storage = storage_of(tensor)
            for store in tuple(_stores):
                store.written(storage)
        return method(*args, **kwargs)

    return call


def _tensors(written: Any) -> Iterable[Tensor]:
    if isinstance(written, Tensor):
        return [written] if written.layout is torch.strided else ()
    return (tensor for each in written for tensor in _tensors(each))


class Contents:
    """The first cache line of every 4 KiB of a flat buffer, and of each of `extents` (elements) in it.

    An edit of a whole parameter changes some of them; one of a few elements may not.
    """

    def __init__(self, extents: Iterable[Extent], buffer: Tensor) -> None:
        size = buffer.element_size()
        generator = torch.Generator().manual_seed(0)
        lines = [
            torch.arange(
                extent.start * size // _LINE,
                -(-extent.stop * size // _LINE),
                _PAGE // _LINE,
                device="cpu",
            )
            for extent in extents
        ]
        at = torch.cat([torch.empty(0, dtype=torch.int64, device="cpu"), *lines])
        odd = torch.randint(1 << 62, (len(at), 1), generator=generator, device="cpu") * 2 + 1
        self._lines, self._odd = at.to(buffer.device), odd.to(buffer.device)
        self._buffer = buffer
        self._sums = self._of(buffer)
        self._left: tuple[Tensor, Tensor] | None = None

    def note(self, buffer: Tensor) -> None:
        """Remember what a buffer holds, and what was remembered of the one that it replaces."""
        if buffer is not self._buffer:
            self._left = (self._buffer, self._sums)
            self._buffer = buffer
        self._sums = self._of(buffer)

    def differ(self) -> bool:
        """Return whether the buffer holds something else; waits for the device."""
        return not torch.equal(self._of(self._buffer), self._sums)

    def left_differ(self) -> bool:
        """Return whether the buffer that was replaced holds something else."""
        return self._left is not None and not torch.equal(self._of(self._left[0]), self._left[1])

    def _of(self, buffer: Tensor) -> Tensor:
        """Return checksums: the same words in other lines, or in another order, have others."""
        words = buffer.view(torch.int64).view(-1, _LINE // 8).index_select(0, self._lines)
        return words.mul_(self._odd).sum(0)
