"""When groups are gathered and released: at first use, ahead of use in the recorded order, and after it.

A *region* is the outermost call of a module that owns parameters, or an open `gathered` context. Inside one,
what autograd saves of a group is replaced by a reference (`SavedView`), so the group may be released at once.
Weights that are read as attributes outside of every region stay until the step ends.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from zbench.engine.parameters.saved import Saved, SavedView
from zbench.engine.parameters.sharded import Member, ShardedGroup, ShardedParameters

Hooks = tuple[Callable[[Tensor], object], Callable[[object], Tensor]]
_COPYING = ("torch.utils.checkpoint", "torch.autograd.graph")  # modules of such hooks
_CONTEXT = -1  # the caller of every context
_LONGEST = 64  # uses of a group in one recorded order, on average: nothing that ends is longer


class GatherOrder:
    """The order in which groups were used last time, as a prediction for this time.

    It is followed as long as it holds; from the first difference on it is recorded anew.
    """

    def __init__(self) -> None:
        self.order: list[ShardedGroup] = []
        self.position = 0

    def restart(self) -> None:
        """A region begins."""
        self.position = 0

    def record(self, group: ShardedGroup, longest: int) -> None:
        """`group` is used now; no more than `longest` uses are kept."""
        if self.position < len(self.order) and self.order[self.position] is not group:
            del self.order[self.position :]
        if self.position == len(self.order):
            if self.position == longest:
                return
            self.order.append(group)
        self.position += 1

    def ahead(self, elements: int) -> list[ShardedGroup]:
        """Return the groups expected next, as many as have no more than `elements` together."""
        found: list[ShardedGroup] = []
        for group in self.order[self.position :]:
            elements -= 0 if group in found else group.numel
            if elements < 0:
                break
            found.append(group)
        return found


class Gatherer:
    """Holds groups while they are used. Up to `window` elements of what comes next are gathered ahead, or
    kept. It outlives the stores: `adopt` gives it others with the same parameters.
    """

    def __init__(self, *, window: int) -> None:
        self.window = window
        self.depth = 0
        self._pushed: list[tuple[int, saved_tensors_hooks]] = []
        self._region_end: set[ShardedGroup] = set()
        self.groups: list[ShardedGroup] = []
        self.adopt(())

    def adopt(self, stores: Sequence[ShardedParameters]) -> None:
        """Gather from `stores` from now on; parameters that autograd may hold themselves stay whole."""
        exposed = [m.info.parameter for g in self.groups if g.exposed for m in g.members]
        for group in self.groups:
            group.members = []
        self.stores = stores
        self.groups = [group for store in stores for group in store.groups if not group.resident]
        self.residents = [group for store in stores for group in store.groups if group.resident]
        self.members: dict[int, tuple[ShardedGroup, Member]] = {
            id(m.info.parameter): (group, m)
            for store in stores
            for group in store.groups
            for m in group.members
        }
        self._longest = _LONGEST * len(self.groups)
        self._traces: dict[tuple[int, bool], GatherOrder] = {}
        self._trace = GatherOrder()
        self._region_end.clear()
        for group in self.groups_of(exposed):
            self.fetch(group)
            group.exposed = True

    def groups_of(self, parameters: Iterable[nn.Parameter | None]) -> list[ShardedGroup]:
        """Return the groups that hold some parameters, each once; without those that are always here."""
        found = (self.members.get(id(p)) for p in parameters)
        return list(dict.fromkeys(f[0] for f in found if f is not None and not f[0].resident))

    def enter(self, caller: int) -> None:
        """A call of `caller` (a number for each module) begins; the outermost one is a region."""
        self.depth += 1
        if not self._packs() and torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
            packer = Packer(self, _top_hooks())
            hooks = saved_tensors_hooks(packer.pack, packer.unpack)
            hooks.__enter__()
            self._pushed.append((self.depth, hooks))
        if self.depth == 1:
            self._trace = self._traces.setdefault((caller, torch.is_grad_enabled()), GatherOrder())
            self._trace.restart()

    def _packs(self) -> bool:
        """Whether what autograd saves now comes to this gatherer."""
        top = _top_hooks()
        packer = getattr(top[0], "__self__", None) if top else None
        return isinstance(packer, Packer) and packer.gatherer is self

    def leave(self) -> None:
        """That call has ended, well or not."""
        if self._pushed and self._pushed[-1][0] == self.depth:
            self._pushed.pop()[1].__exit__()
        self.depth -= 1
        if not self.depth:
            kept, self._region_end = self._region_end, set()
            for group in kept:
                self.release(group)

    def hold(self, groups: Sequence[ShardedGroup]) -> None:
        """Gather what a module that begins to run, or a context, is going to use."""
        safe = not torch.is_grad_enabled() or self._packs()
        for group in groups:
            self.use(group)
            group.exposed |= not safe

    def touch(self, parameter: nn.Parameter) -> None:
        """A parameter is read as an attribute of its module: gather its group.

        It stays to the end of the region, or, where autograd may save the parameter itself, of the step.
        """
        group, _ = self.members.get(id(parameter), (None, None))
        if group is None or group.resident:
            return
        if not self.depth:
            self.fetch(group)
        else:
            self.use(group)
        if torch.is_grad_enabled() and not self._packs() and not _keeps_nothing(_top_hooks()):
            group.exposed = True
        elif not group.frames:
            self._region_end.add(group)

    def fetch(self, group: ShardedGroup) -> None:
        """Return when the group is whole."""
        if group.full is None:
            group.store.unshard(group)
        group.store.wait_for_unshard(group)

    def use(self, group: ShardedGroup) -> None:
        """Return when the group is whole; it stays so until `release`. Gather what is expected to follow."""
        if group.in_use:
            return
        self.fetch(group)
        group.in_use = True
        self._trace.record(group, self._longest)
        for following in self._trace.ahead(self.window):
            if following.full is None:
                following.store.unshard(following)

    def release(self, group: ShardedGroup) -> None:
        """A use has ended: let go of the group, unless another one has not, or it comes again at once."""
        if group.frames or group.exposed or group in self._region_end:
            return
        group.in_use = False
        if group not in self._trace.ahead(self.window):
            self._drop(group)

    def absorb(self) -> None:
        """Take over what has been changed in place in the values that are here now."""
        for group in (*self.residents, *self.groups):
            if group.full is not None and group.unsharding is None:
                group.store.absorb(group)

    def _drop(self, group: ShardedGroup) -> None:
        if group.full is not None and group.unsharding is None:
            group.store.absorb(group)
        group.store.reshard(group)

    def group_behind(self, tensor: Tensor) -> ShardedGroup | None:
        """Return the group whose whole values a tensor is a view of; none of those that are always here."""
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()._cdata
            for store in self.stores:
                group = store.by_storage.get(storage)
                if group is not None and not group.resident:
                    return group
        return None

    def release_all(self) -> None:
        """Let go of everything that nobody uses, at the end of a backward or after an exception."""
        for group in self.groups:
            if group.full is not None and not group.frames and not group.exposed:
                self._drop(group)

    def let_go(self) -> None:
        """The step has ended: nothing that was read during it is kept."""
        for group in self.groups:
            if group.full is not None and not group.frames:
                self._drop(group)

    def holding(self, parameters: Sequence[nn.Parameter]) -> "Held":
        """Return a context in which these parameters are whole."""
        return Held(self, self.groups_of(parameters))

    @contextmanager
    def reading(self, parameter: nn.Parameter) -> Iterator[None]:
        """Hold the whole value of one parameter, outside of any forward or backward."""
        group, _ = self.members[id(parameter)]
        here = group.full is not None
        if not here:
            group.store.unshard(group)
        group.store.wait_for_unshard(group)
        try:
            yield
        finally:
            if not here:
                group.store.reshard(group)


class Packer:
    """What autograd does, inside a region, with the tensors that it saves; `outer` hooks get the others."""

    def __init__(self, gatherer: Gatherer, outer: Hooks | None) -> None:
        self.gatherer, self._outer = gatherer, outer
        self._nested = outer is not None and isinstance(getattr(outer[0], "__self__", None), Packer)

    def pack(self, tensor: Tensor) -> object:
        """Return what autograd keeps in place of `tensor`: of a group, a reference to it."""
        group = self.gatherer.group_behind(tensor)
        if self._outer is not None and not (group is not None and self._nested):
            return self._outer[0](tensor if group is None else tensor.detach())  # memory that stays
        return (SavedView.of(group, tensor) if group is not None else None) or Saved(tensor)

    def unpack(self, kept: object) -> Tensor:
        """Return the tensor that was packed; its group is released once backward has asked for all of it."""
        if isinstance(kept, Saved):
            return kept.tensor()
        if not isinstance(kept, SavedView) or id(kept.parameter) not in self.gatherer.members:
            assert self._outer is not None
            return self._outer[1](kept)
        gatherer = self.gatherer
        group, member = gatherer.members[id(kept.parameter)]
        gatherer.use(group)
        tensor = kept.tensor(group, member)
        if group.outstanding == 0:
            gatherer.release(group)
        return tensor


def _top_hooks() -> Hooks | None:
    found: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return found


def _keeps_nothing(hooks: Hooks | None) -> bool:
    """Whether these hooks, torch's own, keep no parameter itself: they recompute, or copy."""
    return hooks is not None and getattr(hooks[0], "__module__", "") in _COPYING


class Held(AbstractContextManager[None]):
    """A region in which some groups are whole: `with Held(gatherer, groups)`."""

    def __init__(self, gatherer: Gatherer, groups: Sequence[ShardedGroup]) -> None:
        self.gatherer, self.groups = gatherer, groups

    def __enter__(self) -> None:
        self.gatherer.enter(_CONTEXT)
        for group in self.groups:
            group.frames += 1
        self.gatherer.hold(self.groups)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for group in self.groups:
            group.frames -= 1
            self.gatherer.release(group)
        self.gatherer.leave()
