"""Commit or roll back a speculative step.

An update reads the current state and writes its results elsewhere: to the second half of a double buffer, or
to a journal (less memory). A commit makes the results the state; a rollback forgets them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from torch import Tensor, nn

from zbench.engine.memory.buffers import bytes_of
from zbench.engine.memory.kinds import Memory
from zbench.engine.parameters.released import memory_of, set_values
from zbench.engine.partition import Extent, joined
from zbench.engine.transport.buffers import storage_of


class Holder(Protocol):
    """Keeps flat buffers in `memory`, and looks them up again whenever it is asked for a part of one."""

    memory: Memory
    buffers: list[Tensor]


@dataclass(frozen=True, slots=True)
class RollbackTarget:
    """A holder whose buffers an update may write, and the memory category of their second copies."""

    holder: Holder
    category: str


class Rollback(Protocol):
    """Where speculative updates write, and how their results become the state."""

    parity: int
    """Which memory is current: an update that was bound at the same parity can be used again."""

    def other(self, view: Tensor) -> Tensor:
        """Return where the new values of `view` are written; `view` itself if it has no second copy."""

    def keep(self, view: Tensor) -> None:
        """Give `view`, which no update of this step writes, the same values after the commit."""

    def commit(self, written: Iterable[Tensor]) -> None:
        """Make what was written the state. written: the views that the updates have read."""

    def bytes_by_category(self) -> dict[str, int]: ...


def summed(parts: Iterable[tuple[RollbackTarget, Sequence[Tensor]]]) -> dict[str, int]:
    """Return the bytes of second copies by category."""
    return bytes_of(
        {target.category: sum(target.holder.memory.occupied(t.nbytes) for t in tensors)}
        for target, tensors in parts
    )


class DoubleBuffer:
    """A second buffer for every buffer of `held`; `parameters` that are views of them change buffers at a
    commit.

    An update reads the current buffer and writes the other. So nothing that backward, a gather or a
    checkpoint may read changes before the step is certain, and a rollback exchanges nothing. Parameters
    beside the master weights change buffers by `p.data`, without a copy; those on an accelerator have one
    buffer, and their new values wait in the staging buffer.
    """

    def __init__(self, held: Sequence[RollbackTarget], parameters: Sequence[nn.Parameter]) -> None:
        self._doubled = [
            (h, [h.holder.memory.zeros(b.numel(), b.dtype) for b in h.holder.buffers]) for h in held
        ]
        self._parameters = parameters
        self._views: dict[int, list[tuple[nn.Parameter, Tensor]]] = {}
        self._twins: dict[int, Tensor] = {}
        for h, others in self._doubled:
            for one, other in zip(h.holder.buffers, others, strict=True):
                self._twins[storage_of(one)], self._twins[storage_of(other)] = other, one
        self.parity = 0

    def other(self, view: Tensor) -> Tensor:
        twin = self._twins.get(storage_of(view))
        return view if twin is None else _same_view(view, twin)

    def keep(self, view: Tensor) -> None:
        if (other := self.other(view)) is not view:
            other.copy_(view)

    def commit(self, written: Iterable[Tensor] = ()) -> None:
        moved = self._moved()
        for h, others in self._doubled:
            current = h.holder.buffers[:]
            h.holder.buffers[:] = others
            others[:] = current
        self.parity = 1 - self.parity
        for parameter, view in moved:
            set_values(parameter, type(parameter), view)

    def bytes_by_category(self) -> dict[str, int]:
        return summed(self._doubled)

    def _moved(self) -> list[tuple[nn.Parameter, Tensor]]:
        if self.parity not in self._views:
            self._views[self.parity] = [
                (p, _same_view(memory_of(p), twin))
                for p in self._parameters
                if (twin := self._twins.get(storage_of(memory_of(p)))) is not None
            ]
        return self._views[self.parity]


def _same_view(view: Tensor, of: Tensor) -> Tensor:
    return of.as_strided(view.size(), view.stride(), view.storage_offset())


SHARE = 0.5
"""Of the elements, those that are updated ahead: the journal holds new values of so many."""


class Journal:
    """Memory for new values of those `views` that are in buffers of `held`; a commit copies them.

    It needs less memory than a double buffer, because it covers only some subgroups (the others are updated
    in place after backward), and more traffic, because a commit copies.
    """

    parity = 0

    def __init__(self, held: Sequence[RollbackTarget], views: Iterable[Tensor]) -> None:
        category = {storage_of(b): (b.dtype, h) for h in held for b in h.holder.buffers}
        covered = sorted(
            (storage_of(v), int(v.storage_offset()), v.numel()) for v in views if storage_of(v) in category
        )
        self._starts: dict[int, list[int]] = {}
        self._room: dict[int, list[Tensor]] = {}
        self._kept: list[tuple[RollbackTarget, list[Tensor]]] = []
        for storage, runs in groupby(covered, key=lambda run: run[0]):
            dtype, h = category[storage]
            extents = joined(Extent(start, length) for _, start, length in runs)
            self._starts[storage] = [extent.start for extent in extents]
            self._room[storage] = [h.holder.memory.zeros(extent.length, dtype) for extent in extents]
            self._kept.append((h, self._room[storage]))

    def other(self, view: Tensor) -> Tensor:
        storage = storage_of(view)
        at = view.storage_offset()
        if storage not in self._starts:
            return view
        k = bisect_right(self._starts[storage], at) - 1
        at -= self._starts[storage][k]
        room = self._room[storage][k][at : at + view.numel()]
        assert room.numel() == view.numel(), "an update that the journal has no room for"
        return room

    def keep(self, view: Tensor) -> None:
        return

    def commit(self, written: Iterable[Tensor]) -> None:
        for view in written:
            if (new := self.other(view)) is not view:
                view.copy_(new)

    def bytes_by_category(self) -> dict[str, int]:
        return summed(self._kept)
