"""How a step that ran ahead is taken or taken back: what an update reads stays as it is until the step is
certain, and what it writes goes elsewhere.

`Halves` (a double buffer) or `Journal` (less memory) say where. A rollback is to forget what was written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Holder(Protocol):
    """Keeps flat buffers, and looks them up anew whenever it is asked for a part of one."""

    buffers: list[Tensor]


@dataclass(frozen=True, slots=True)
class Held:
    """What an update may write: a holder, and the memory category of what is kept of it a second time."""

    holder: Holder
    category: str


class Rollback(Protocol):
    """Where updates ahead of the decision write, and how what they wrote becomes the state."""

    parity: int
    """Which memory is current: an update that was bound at the same parity can be used again."""

    def other(self, view: Tensor) -> Tensor:
        """Return where the new values of `view` are written; `view` itself where nothing is kept twice."""
        ...

    def keep(self, view: Tensor) -> None:
        """No update of this step writes `view`: it has the same values after the commit."""
        ...

    def commit(self, written: Iterable[Tensor]) -> None:
        """Make what was written the state; `written` are the views that updates have read."""
        ...

    def bytes_by_category(self) -> dict[str, int]: ...


def second(buffer: Tensor, numel: int) -> Tensor:
    """Return a zeroed buffer [numel] like another."""
    return torch.zeros(numel, dtype=buffer.dtype, device=buffer.device, pin_memory=buffer.is_pinned())


def storage_of(tensor: Tensor) -> int:
    """Return what identifies a tensor's memory."""
    return int(tensor.untyped_storage()._cdata)


def summed(parts: Iterable[tuple[str, Sequence[Tensor]]]) -> dict[str, int]:
    """Return the bytes of tensors by category."""
    total: dict[str, int] = {}
    for category, tensors in parts:
        total[category] = total.get(category, 0) + sum(t.nbytes for t in tensors)
    return total
