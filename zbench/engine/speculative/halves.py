"""Double buffers: whatever an update writes has a second half, and a commit exchanges the two.

An update reads the current half and writes the other, so nothing that backward, a gather or a checkpoint may
read changes before the step is certain, and taking an update back is not exchanging. Where the model's
parameters live beside the masters they have a second half too, and `p.data` moves over at the commit: the new
values are delivered without a copy. Parameters on an accelerator keep one half: their new values wait in the
staging buffer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Holder(Protocol):
    """Keeps flat buffers, and looks them up anew whenever it is asked for a part of one."""

    buffers: list[Tensor]


@dataclass(frozen=True, slots=True)
class Doubled:
    """A holder, the second half of each of its buffers, and their memory category."""

    holder: Holder
    others: list[Tensor]
    category: str


class Halves:
    """The second halves of what `holders` keep (with memory categories), and of `parameters` that view it."""

    def __init__(self, holders: Sequence[tuple[Holder, str]], parameters: Sequence[nn.Parameter]) -> None:
        self._doubled = [
            Doubled(holder, [_like(buffer) for buffer in holder.buffers], category)
            for holder, category in holders
        ]
        self._parameters = parameters
        self._views: dict[int, list[tuple[nn.Parameter, Tensor]]] = {}
        self._twins: dict[int, Tensor] = {}
        for doubled in self._doubled:
            for one, other in zip(doubled.holder.buffers, doubled.others, strict=True):
                self._twins[_storage(one)], self._twins[_storage(other)] = other, one
        self.parity = 0
        """Which half is current, 0 or 1."""

    def other(self, view: Tensor) -> Tensor:
        """Return the same view of the other half; `view` itself if its memory is not doubled."""
        twin = self._twins.get(_storage(view))
        return view if twin is None else _same_view(view, twin)

    def swap(self) -> None:
        """Make the other half the current one."""
        moved = self._moved()
        for doubled in self._doubled:
            current = doubled.holder.buffers[:]
            doubled.holder.buffers[:] = doubled.others
            doubled.others[:] = current
        self.parity = 1 - self.parity
        for parameter, view in moved:
            parameter.data = view

    def bytes_by_category(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for doubled in self._doubled:
            held = sum(other.nbytes for other in doubled.others)
            total[doubled.category] = total.get(doubled.category, 0) + held
        return total

    def _moved(self) -> list[tuple[nn.Parameter, Tensor]]:
        if self.parity not in self._views:
            self._views[self.parity] = [
                (p, _same_view(p.data, twin))
                for p in self._parameters
                if (twin := self._twins.get(_storage(p.data))) is not None
            ]
        return self._views[self.parity]


def _like(buffer: Tensor) -> Tensor:
    return torch.zeros(
        buffer.numel(), dtype=buffer.dtype, device=buffer.device, pin_memory=buffer.is_pinned()
    )


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _same_view(view: Tensor, of: Tensor) -> Tensor:
    return of.as_strided(view.size(), view.stride(), view.storage_offset())
