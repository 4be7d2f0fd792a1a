"""When groups are gathered and released: at first use, ahead of use in the recorded order, and after it.

A *region* is the outermost call of a module that owns parameters, or an open `gathered` context. Inside one,
what autograd saves of a group is replaced by a reference (`SavedView`), so the group may be released at once.
Weights that are read as attributes outside of every region stay until the step ends, or, where a checkpoint
computes again, until the next one does.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.graph import saved_tensors_hooks

from zbench.engine.parameters.saved import Saved, SavedView, uncompiled
from zbench.engine.parameters.sharded import GroupState, ShardedGroup, ShardedParameters
from zbench.engine.parameters.threads import SoleUser
from zbench.engine.transport.buffers import storage_of
from zbench.errors import UsageError

Hooks = tuple[Callable[[Tensor], object], Callable[[object], Tensor]]
_RECOMPUTING = "torch.utils.checkpoint"  # the module of such hooks
_CONTEXT = -1  # the caller of every context
_LOW = 0.25  # of the window: gathers in bursts wake the ranks' threads less often
_LONGEST = 64  # uses of a group in one recorded order, on average: nothing that ends is longer


def explain_torch_func(error: RuntimeError) -> None:
    """Raise UsageError with the remedy for the error of torch.func.grad and its kin in a region."""
    if "support saved tensor hooks" in str(error):
        raise UsageError(
            "torch.func.grad, vjp, jacrev and hessian do not run inside a forward or engine.gathered at"
            " zero_stage 3. Call them outside, with engine.full_parameters() for torch.func.functional_call,"
            " or use torch.autograd.grad(create_graph=True), or zero_stage 2"
        ) from error


def check_not_traced() -> None:
    """Raise UsageError where operations are recorded to be done again: they would keep gathered memory."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    if mode is not None or torch._C._get_tracing_state() is not None:
        raise UsageError(
            "torch.export, make_fx and torch.jit.trace would keep a model's weights as they are now at"
            " zero_stage 3. Trace a model that no engine trains, with the values of engine.full_parameters(),"
            " or use zero_stage 2"
        )


class Gatherer:
    """Gathers the groups of `stores` for use and releases them. Up to `window` elements of the groups that
    are expected next are gathered ahead, or kept, and in any case the next `least` groups. `orders`: the
    order of use in the last region of each outermost caller, with and without gradients.
    """

    def __init__(self, stores: Sequence[ShardedParameters], *, window: int, least: int = 0) -> None:
        self.stores, self.window, self.least = stores, window, least
        self.user = SoleUser(has_threads=any(store.device.type != "cpu" for store in stores))
        self.depth = 0
        self._pushed: list[tuple[int, saved_tensors_hooks]] = []
        self._region_end: set[ShardedGroup] = set()
        self._recomputing: object = None
        self.held_in_backward: dict[object, Sequence[ShardedGroup]] = {}
        groups = [group for store in stores for group in store.groups]
        self.groups = [group for group in groups if not group.resident]
        self.residents = [group for group in groups if group.resident]
        self.group_of = {id(m.info.parameter): group for group in groups for m in group.members}
        self._longest = _LONGEST * len(self.groups)
        self.orders: dict[tuple[int, bool], GatherOrder] = {}
        self._trace = GatherOrder()

    def groups_of(self, parameters: Iterable[nn.Parameter | None]) -> list[ShardedGroup]:
        """Return the groups of some parameters, each once, without groups that are never released."""
        groups = (self.group_of.get(id(p)) for p in parameters)
        return list(dict.fromkeys(group for group in groups if group is not None and not group.resident))

    @uncompiled
    def enter(self, caller: int) -> None:
        """Begin a call of `caller` (a number for each module). The outermost call opens a region."""
        if not self.depth:
            check_not_traced()
        self.user.__enter__()
        self.depth += 1
        if not self._packs() and torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
            packer = Packer(self, _top_hooks())
            hooks = saved_tensors_hooks(packer.pack, packer.unpack)
            hooks.__enter__()
            self._pushed.append((self.depth, hooks))
        if self.depth == 1:
            self._trace = self.orders.setdefault((caller, torch.is_grad_enabled()), GatherOrder())
            self._trace.position = 0  # predictions begin with the first group again

    def _packs(self) -> bool:
        """Return whether tensors that autograd saves now are packed by this gatherer."""
        top = _top_hooks()
        packer = getattr(top[0], "__self__", None) if top else None
        return isinstance(packer, Packer) and packer.gatherer is self

    @uncompiled
    def leave(self) -> None:
        """End that call, whether it returned or raised."""
        if self._pushed and self._pushed[-1][0] == self.depth:
            self._pushed.pop()[1].__exit__()
        self.depth -= 1
        try:
            if not self.depth:
                self._end_region()
        finally:
            self.user.__exit__()

    def _end_region(self) -> None:
        groups = self._region_end
        self._region_end = set()
        for group in groups:
            self.release(group)

    @uncompiled
    def begin_use(self, groups: Sequence[ShardedGroup], *, gather: bool = True) -> None:
        """A module begins to run, or a context is entered, that needs these groups: now, with `gather`."""
        safe = not torch.is_grad_enabled() or self._packs()
        for group in groups:
            group.frames += 1
        for group in groups if gather else ():
            self.use(group)
            if not safe:
                self._expose(group)

    @uncompiled
    def end_use(self, groups: Sequence[ShardedGroup]) -> None:
        """What was begun has ended, well or not. UsageError for a weight with other memory."""
        for group in groups:
            group.frames -= 1
        for group in groups:
            self.release(group)

    @uncompiled
    def touch(self, parameter: nn.Parameter) -> None:
        """Gather the group of a parameter that is read as an attribute of its module.

        It stays whole until the region ends; where autograd may save the parameter, until the step ends. A
        checkpoint within a module's forward computes again outside of every region: then until the next one
        does. What the graph has saved stays in memory by itself.
        """
        group = self.group_of.get(id(parameter))
        if group is None or group.resident:
            return
        recomputes = not self.depth and self._is_recomputed()
        if not self.depth and not recomputes:
            check_not_traced()
            self.fetch(group)
        else:
            self.use(group)
        if torch.is_grad_enabled() and not self._packs() and not _keeps_nothing(_top_hooks()):
            self._expose(group)
        elif not group.frames:
            self._region_end.add(group)

    def _is_recomputed(self) -> bool:
        """Return whether a checkpoint computes again now; what the one before has read is released."""
        hooks = _top_hooks()
        if hooks is None or not _keeps_nothing(hooks) or torch._C._current_graph_task_id() < 0:
            return False
        if hooks[0] is not self._recomputing:
            self._recomputing = hooks[0]
            self._end_region()
        return True

    def _expose(self, group: ShardedGroup) -> None:
        if group.state is not GroupState.EXPOSED:
            group.become(GroupState.EXPOSED)

    def fetch(self, group: ShardedGroup) -> None:
        """Gather the group and wait until it is whole."""
        with self.user:
            if group.state is GroupState.SHARDED:
                group.store.unshard(group)
            group.store.wait_for_unshard(group)

    def use(self, group: ShardedGroup) -> None:
        """Gather the group and keep it whole until `release`; gather ahead what is expected next."""
        self.fetch(group)
        if group.state is not GroupState.WHOLE:
            return
        group.become(GroupState.IN_USE)
        self._trace.record(group, self._longest)
        ahead = self._trace.ahead(self.window, self.least)
        there = list(takewhile(lambda following: following.state is not GroupState.SHARDED, ahead))
        enough = sum(following.numel for following in there) > self.window * _LOW
        if enough and len(there) >= self.least:
            return
        for following in ahead:
            if following.state is GroupState.SHARDED:
                following.store.unshard(following)

    def release(self, group: ShardedGroup) -> None:
        """End a use: release the group unless something else uses it, or it is expected next."""
        if group.frames or group.state is GroupState.EXPOSED or group in self._region_end:
            return
        if group.state is GroupState.IN_USE:
            group.become(GroupState.WHOLE)
        if group not in self._trace.ahead(self.window, self.least):
            self._drop(group)

    def absorb(self) -> None:
        """Write in-place changes of gathered values to the master weights."""
        for group in (*self.residents, *self.groups):
            if group.is_whole:
                group.store.absorb(group)
        for store in self.stores:
            store.check_handed_out()

    def note_handed_out(self, parameter: nn.Parameter, value: Tensor, key: str) -> None:
        """Note the copy of a parameter that is put into a state of the model."""
        if (group := self.group_of.get(id(parameter))) is not None:
            group.store.handed_out.note(parameter, value, key)

    def _drop(self, group: ShardedGroup) -> None:
        if group.is_whole:
            group.store.absorb(group)
        group.store.reshard(group)

    def group_behind(self, tensor: Tensor) -> ShardedGroup | None:
        """Return the releasable group whose gathered values a tensor is a view of, if there is one."""
        if tensor.layout is torch.strided and not is_functorch_wrapped_tensor(tensor):
            storage = storage_of(tensor)
            for store in self.stores:
                group = store.by_storage.get(storage)
                if group is not None and not group.resident:
                    return group
        return None

    def check_age(self, tensor: Tensor) -> None:
        """Raise UsageError for a view of a parameter that shows values of before the last step."""
        parameter = tensor._base
        group = self.group_of.get(id(parameter))
        if group is not None and storage_of(tensor) not in group.store.of_this_step:
            name = next(m.info.name for m in group.members if m.info.parameter is parameter)
            raise UsageError(
                f"a view of {name!r} was kept from before the last step, and shows its values of then at"
                " zero_stage 3: make the view anew in each forward"
            )

    def release_all(self) -> None:
        """Release every unused group, at the end of a backward or after an exception."""
        self._recomputing = None
        if not self.depth:
            self._region_end.clear()
        while self.held_in_backward:
            self.end_use(self.held_in_backward.popitem()[1])
        for group in self.groups:
            if not group.frames and group.state is not GroupState.EXPOSED:
                self._drop(group)

    @contextmanager
    def holding(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Keep these parameters whole: a region of its own, or part of the one around it."""
        groups = self.groups_of(parameters)
        self.enter(_CONTEXT)
        try:
            self.begin_use(groups)
            yield
        except RuntimeError as error:
            explain_torch_func(error)
            raise
        finally:
            try:
                self.end_use(groups)
            finally:
                self.leave()


class Packer:
    """Saved-tensor hooks of a region. Tensors that belong to no group go to the `outer` hooks, and those of a
    group, too, unless the owner of the outer hooks `leaves_weights` to the region within.
    """

    leaves_weights = True

    def __init__(self, gatherer: Gatherer, outer: Hooks | None) -> None:
        self.gatherer, self._outer = gatherer, outer
        owner = getattr(outer[0], "__self__", None) if outer is not None else None
        self._keeps_weights = outer is None or getattr(owner, "leaves_weights", False)

    @uncompiled
    def pack(self, tensor: Tensor) -> object:
        """Return what autograd keeps in place of `tensor`: a reference where it is a view of a group."""
        group = self.gatherer.group_behind(tensor)
        if group is None and tensor._base is not None:
            self.gatherer.check_age(tensor)
        if self._outer is not None and (group is None or not self._keeps_weights):
            return self._outer[0](tensor if group is None else tensor.detach())  # memory that stays
        return (SavedView.of(group, tensor) if group is not None else None) or Saved(tensor)

    @uncompiled
    def unpack(self, handle: object) -> Tensor:
        """Return the tensor that was packed. Its group is released when backward has unpacked all of it."""
        if isinstance(handle, Saved):
            return handle.tensor()
        if not isinstance(handle, SavedView) or handle.group.store not in self.gatherer.stores:
            assert self._outer is not None
            return self._outer[1](handle)
        self.gatherer.use(handle.group)
        tensor = handle.tensor()
        if handle.group.outstanding == 0:
            self.gatherer.release(handle.group)
        return tensor


def _top_hooks() -> Hooks | None:
    hooks: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks


def _keeps_nothing(hooks: Hooks | None) -> bool:
    """Return whether these hooks are torch's own that recompute, and so keep no parameter. Those of
    `save_on_cpu` do not count: of a model on the CPU they keep the tensor itself.
    """
    return hooks is not None and getattr(hooks[0], "__module__", "") == _RECOMPUTING


class GatherOrder:
    """The order in which groups were used in the last region: the prediction for the next one.

    From the first use that differs from the prediction, the order is recorded again.
    """

    def __init__(self) -> None:
        self.order: list[ShardedGroup] = []
        self.position = 0

    def record(self, group: ShardedGroup, longest: int) -> None:
        """Record that `group` is used now. At most `longest` uses are kept."""
        if self.position < len(self.order) and self.order[self.position] is not group:
            del self.order[self.position :]
        if self.position == len(self.order):
            if self.position == longest:
                return
            self.order.append(group)
        self.position += 1

    def ahead(self, elements: int, least: int) -> Collection[ShardedGroup]:
        """Return the groups that are expected next, each once: the first `least`, and others up to `elements`
        elements in total.
        """
        groups: dict[ShardedGroup, None] = {}
        for group in islice(self.order, self.position, None):
            if group not in groups:
                elements -= group.extent.length
                if elements < 0 and len(groups) >= least:
                    break
                groups[group] = None
        return groups
