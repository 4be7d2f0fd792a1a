"""Double buffers: whatever an update writes has a second half, and a commit exchanges the two.

An update reads the current half and writes the other, so nothing that backward, a gather or a checkpoint may
read changes before the step is certain, and taking an update back is not exchanging. Where the model's
parameters live beside the masters they have a second half too, and `p.data` moves over at the commit: the new
values are delivered without a copy. Parameters on an accelerator keep one half: their new values wait in the
staging buffer.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from zbench.engine.speculative.rollback import Held, second, storage_of, summed


class Halves:
    """The second halves of what is `held`, and of `parameters` that view it."""

    def __init__(self, held: Sequence[Held], parameters: Sequence[nn.Parameter]) -> None:
        self._doubled = [(h, [second(b, b.numel()) for b in h.holder.buffers]) for h in held]
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
            parameter.data = view

    def bytes_by_category(self) -> dict[str, int]:
        return summed((h.category, others) for h, others in self._doubled)

    def _moved(self) -> list[tuple[nn.Parameter, Tensor]]:
        if self.parity not in self._views:
            self._views[self.parity] = [
                (p, _same_view(p.data, twin))
                for p in self._parameters
                if (twin := self._twins.get(storage_of(p.data))) is not None
            ]
        return self._views[self.parity]


def _same_view(view: Tensor, of: Tensor) -> Tensor:
    return of.as_strided(view.size(), view.stride(), view.storage_offset())
