"""When units are gathered and released: at first use, ahead of use in the recorded order, and after it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from zbench.engine.parameters.sharded import ShardedParameters, Unit


class Trace:
    """The order in which units were used last time, as a prediction for this time.

    It is followed as long as it holds; from the first difference on it is recorded anew.
    """

    def __init__(self) -> None:
        self.order: list[Unit] = []
        self.position = 0

    def restart(self) -> None:
        """A forward begins."""
        self.position = 0

    def record(self, unit: Unit) -> None:
        """`unit` is used now."""
        if self.position < len(self.order) and self.order[self.position] is not unit:
            del self.order[self.position :]
        if self.position == len(self.order):
            self.order.append(unit)
        self.position += 1

    def ahead(self, elements: int) -> list[Unit]:
        """Return the units expected next, as many as have no more than `elements` together."""
        found: list[Unit] = []
        for unit in self.order[self.position :]:
            elements -= 0 if unit in found else unit.numel
            if elements < 0:
                break
            found.append(unit)
        return found


class Gatherer:
    """Holds units while they are used. Up to `window` elements of what comes next are gathered ahead, or
    kept.
    """

    def __init__(self, stores: Sequence[ShardedParameters], *, window: int) -> None:
        self.stores, self.window = stores, window
        self.units = [unit for store in stores for unit in store.units if not unit.resident]
        self.unit_of = {id(t.parameter): unit for unit in self.units for t, _ in unit.members}
        self._traces = {True: Trace(), False: Trace()}
        self._trace = self._traces[True]

    def begin_forward(self) -> None:
        """The model's forward begins; with gradients or without are different orders."""
        self._trace = self._traces[torch.is_grad_enabled()]
        self._trace.restart()

    def use(self, unit: Unit) -> None:
        """Return when the unit is whole; it stays so until `release`."""
        if unit.held:
            return
        if unit.full is None:
            unit.store.start(unit)
        unit.store.finish(unit)
        unit.held = True
        self._trace.record(unit)
        for following in self._trace.ahead(self.window):
            if following.full is None:
                following.store.start(following)

    def release(self, unit: Unit) -> None:
        """The unit is out of use: let go of it, unless it comes again at once."""
        unit.held = False
        if unit not in self._trace.ahead(self.window):
            unit.store.drop(unit)

    def release_all(self) -> None:
        """Let go of everything, at the end of a backward or after an exception."""
        for unit in self.units:
            if unit.full is not None:
                unit.store.drop(unit)

    @contextmanager
    def reading(self, parameter: torch.nn.Parameter) -> Iterator[None]:
        """Hold the whole value of one parameter, outside of any forward or backward."""
        unit = self.unit_of.get(id(parameter))
        if unit is None or unit.full is not None:
            yield
            return
        unit.store.start(unit)
        unit.store.finish(unit)
        yield
        unit.store.drop(unit)

    def pack(self, tensor: Tensor) -> object:
        """Return what autograd keeps in place of `tensor`: a reference to its unit if it is a view of one."""
        for store in self.stores:
            unit = store.unit_behind(tensor)
            if unit is not None and not unit.resident:
                return SavedView(unit, tensor)
        return (
            tensor if tensor.is_leaf else tensor.detach()
        )  # a node that keeps its own output is never freed

    def unpack(self, kept: object) -> Tensor:
        """Return the tensor that was packed; its unit is released when backward has asked for all of them."""
        if isinstance(kept, Tensor):
            return kept
        assert isinstance(kept, SavedView)
        self.use(kept.unit)
        assert kept.unit.full is not None
        tensor = kept.unit.full.as_strided(kept.size, kept.stride, kept.offset)
        kept.settle()
        if kept.unit.outstanding == 0:
            self.release(kept.unit)
        return tensor


class SavedView:
    """A view of a unit's whole values, to be made again in backward. Counts as outstanding until then."""

    __slots__ = ("offset", "pending", "size", "stride", "unit")

    def __init__(self, unit: Unit, tensor: Tensor) -> None:
        self.unit, self.pending = unit, True
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        unit.outstanding += 1

    def settle(self) -> None:
        """Count it as asked for."""
        self.unit.outstanding -= self.pending
        self.pending = False

    def __del__(self) -> None:
        self.settle()
