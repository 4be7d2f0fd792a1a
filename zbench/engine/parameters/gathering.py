"""When parameter groups are unsharded and resharded: at first use, ahead of use in the recorded order, after
use.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from zbench.engine.parameters.sharded import ShardedGroup, ShardedParameters


class GatherOrder:
    """The order in which groups were used last time, as a prediction for this time.

    It is followed while it holds; from the first difference on it is recorded again.
    """

    def __init__(self) -> None:
        self.order: list[ShardedGroup] = []
        self.position = 0

    def restart(self) -> None:
        """Begin a forward."""
        self.position = 0

    def record(self, group: ShardedGroup) -> None:
        """Note that `group` is used now."""
        if self.position < len(self.order) and self.order[self.position] is not group:
            del self.order[self.position :]
        if self.position == len(self.order):
            self.order.append(group)
        self.position += 1

    def ahead(self, elements: int) -> list[ShardedGroup]:
        """Return the groups that are expected next, as many as have at most `elements` together."""
        found: list[ShardedGroup] = []
        for group in self.order[self.position :]:
            elements -= 0 if group in found else group.numel
            if elements < 0:
                break
            found.append(group)
        return found


class Gatherer:
    """Keeps groups unsharded while they are used; prefetches, or keeps, up to `window` elements of those used
    next.
    """

    def __init__(self, stores: Sequence[ShardedParameters], *, window: int) -> None:
        self.stores, self.window = stores, window
        self.groups = [group for store in stores for group in store.groups if not group.resident]
        self.group_of = {id(t.parameter): group for group in self.groups for t, _ in group.members}
        self._traces = {True: GatherOrder(), False: GatherOrder()}
        self._trace = self._traces[True]

    def begin_forward(self) -> None:
        """Begin a forward of the model; forwards with and without gradients have orders of their own."""
        self._trace = self._traces[torch.is_grad_enabled()]
        self._trace.restart()

    def use(self, group: ShardedGroup) -> None:
        """Return when the group is unsharded; it stays so until `release`."""
        if group.in_use:
            return
        if group.full is None:
            group.store.unshard(group)
        group.store.wait_for_unshard(group)
        group.in_use = True
        self._trace.record(group)
        for following in self._trace.ahead(self.window):
            if following.full is None:
                following.store.unshard(following)

    def release(self, group: ShardedGroup) -> None:
        """Reshard a group that is out of use, unless it is used again at once."""
        group.in_use = False
        if group not in self._trace.ahead(self.window):
            group.store.reshard(group)

    def release_all(self) -> None:
        """Reshard every group, at the end of a backward or after an exception."""
        for group in self.groups:
            if group.full is not None:
                group.store.reshard(group)

    @contextmanager
    def reading(self, parameter: torch.nn.Parameter) -> Iterator[None]:
        """Unshard one parameter outside of any forward or backward."""
        group = self.group_of.get(id(parameter))
        if group is None or group.full is not None:
            yield
            return
        group.store.unshard(group)
        group.store.wait_for_unshard(group)
        yield
        group.store.reshard(group)

    def pack(self, tensor: Tensor) -> object:
        """Return what autograd saves in place of `tensor`: a reference if it is a view of an
        unsharded group.
        """
        for store in self.stores:
            group = store.group_viewed_by(tensor)
            if group is not None and not group.resident:
                return SavedView(group, tensor)
        return (
            tensor if tensor.is_leaf else tensor.detach()
        )  # a node that keeps its own output is never freed

    def unpack(self, kept: object) -> Tensor:
        """Return the tensor that was packed; its group is released when backward has unpacked all of them."""
        if isinstance(kept, Tensor):
            return kept
        assert isinstance(kept, SavedView)
        self.use(kept.group)
        assert kept.group.full is not None
        tensor = kept.group.full.as_strided(kept.size, kept.stride, kept.offset)
        kept.settle()
        if kept.group.outstanding == 0:
            self.release(kept.group)
        return tensor


class SavedView:
    """A view of an unsharded group, to be made again in backward. It counts as outstanding until then."""

    __slots__ = ("group", "offset", "pending", "size", "stride")

    def __init__(self, group: ShardedGroup, tensor: Tensor) -> None:
        self.group, self.pending = group, True
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        group.outstanding += 1

    def settle(self) -> None:
        """Stop counting it as outstanding."""
        self.group.outstanding -= self.pending
        self.pending = False

    def __del__(self) -> None:
        self.settle()
