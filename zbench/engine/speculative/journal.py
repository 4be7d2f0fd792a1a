"""The journal: new values wait in it until the step is certain, and are copied over at the commit.

Less memory than a double buffer, since it covers only some subgroups (the others are updated in place after
backward) and the parameters of none but these; more traffic, since a commit copies.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby

from torch import Tensor

from zbench.engine.speculative.rollback import Held, second, storage_of, summed

SHARE = 0.5
"""Of the elements, those that are updated ahead: the journal holds new values of so many."""


class Journal:
    """Room for new values of `views`, as far as they lie in what `held` holds."""

    parity = 0

    def __init__(self, held: Sequence[Held], views: Iterable[Tensor]) -> None:
        category = {storage_of(b): (b, h.category) for h in held for b in h.holder.buffers}
        covered = sorted(
            (storage_of(v), int(v.storage_offset()), int(v.storage_offset()) + v.numel())
            for v in views
            if storage_of(v) in category
        )
        self._starts: dict[int, list[int]] = {}
        self._room: dict[int, list[Tensor]] = {}
        self._kept: list[tuple[str, list[Tensor]]] = []
        for storage, runs in groupby(covered, key=lambda run: run[0]):
            buffer, name = category[storage]
            joined = _joined([(start, stop) for _, start, stop in runs])
            self._starts[storage] = [start for start, _ in joined]
            self._room[storage] = [second(buffer, stop - start) for start, stop in joined]
            self._kept.append((name, self._room[storage]))

    def other(self, view: Tensor) -> Tensor:
        storage, at = storage_of(view), view.storage_offset()
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


def _joined(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, stop in runs:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found
