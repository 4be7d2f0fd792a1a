"""DeepSpeed's stage 3 by rules: when parameters are gathered and freed, and how gradients are partitioned.

Paths are below `deepspeed/runtime/zero/`.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from zbench.estimate.deepspeed.crossing import ReadParameters, crossing
from zbench.estimate.deepspeed.engine import RuledEngine
from zbench.estimate.ledger import BUCKETS, GRADIENTS, MASTER, PARAMETERS

GONE, UNDER_WAY, HERE = range(3)


@dataclass(eq=False, slots=True)
class Shard:
    """One parameter. part: elements of a rank. users: modules that need it. gradient: of all elements, until
    it is reduced. sums: this rank's gradient.
    """

    parameter: nn.Parameter
    number: int
    numel: int
    shape: torch.Size
    part: int
    persists: bool
    status: int = HERE
    users: set[nn.Module] = field(default_factory=set)
    gradient: Tensor | None = None
    sums: Tensor | None = None

    def free(self) -> None:
        """partition_parameters.py, `free_param`."""
        self.parameter.data = self.parameter.data.new_empty(0)
        self.status = GONE


class Gathering:
    """One all-gather: a flat buffer, and of several parameters a copy of each once one is waited for
    (partition_parameters.py, `_all_gather_sequential` and `AllGatherCoalescedHandle`).
    """

    def __init__(self, shards: Sequence[Shard], engine: RuledEngine) -> None:
        self._shards, self._engine, self._is_over = shards, engine, False
        part = sum(shard.part for shard in shards)
        category = BUCKETS if len(shards) > 1 else PARAMETERS
        self._flat: Tensor = engine.new(part * engine.world, engine.keys.dtype, category)
        dist.all_gather_into_tensor(self._flat, self._flat[:part])
        for shard in shards:
            shard.status = UNDER_WAY
        if len(shards) == 1:
            shards[0].parameter.data = self._flat[: shards[0].numel].view(shards[0].shape)

    def wait(self) -> None:
        """Make the parameters available; the flat buffer lives as long as this."""
        for shard in () if self._is_over else self._shards:
            if len(self._shards) > 1:
                whole = self._engine.new(shard.numel, self._engine.keys.dtype, PARAMETERS)
                shard.parameter.data = whole.view(shard.shape)
            shard.status = HERE
        self._is_over = True


class Coordinator:
    """Gathers what a module needs and prefetches what follows; frees what has no use soon
    (partitioned_param_coordinator.py). The order of modules is learned in the first backward and forward.
    """

    def __init__(self, engine: RuledEngine, shards: Iterable[Shard]) -> None:
        self._engine = engine
        self._of = {shard.parameter: shard for shard in shards}
        self._order: list[nn.Module] = []
        self._is_complete = False
        self._uses: dict[Shard, list[int]] = {}
        self._passed: list[int] = []
        self._handles: dict[Shard, Gathering] = {}
        self._active: dict[nn.Module, None] = {}
        self._running: list[nn.Module] = []
        self._external: dict[nn.Module, list[Shard]] = {}
        self._restart()

    def _restart(self) -> None:
        self._step = self._available = 0
        self._fetched: dict[Shard, int] = {}
        uses = [(shard, k) for k, module in enumerate(self._order) for shard in self._own(module)]
        self._queue = deque(uses if self._is_complete else ())

    def _own(self, module: nn.Module) -> list[Shard]:
        shards = {self._of[p] for p in module.parameters(recurse=False)}
        shards.update(self._external.get(module, ()))
        return sorted(shards, key=lambda shard: shard.number)

    def begin(self) -> None:
        """`reset_step`: a forward of the whole model begins."""
        for shard, handle in self._handles.items():
            handle.wait()
            self._free(shard)
        self._handles.clear()
        if self._order and not self._is_complete:
            self._is_complete = True
            for k, module in enumerate(self._order):
                for shard in self._own(module):
                    self._uses.setdefault(shard, []).append(k)
            sizes = (sum(shard.numel for shard in self._own(module)) for module in self._order)
            self._passed = list(accumulate(sizes, initial=0))
        self._restart()

    def read(self, parameter: nn.Parameter) -> None:
        """Gather a parameter that a module's forward reads from another module, such as an nn.ParameterList;
        from then on it is the reader's, too (parameter_offload.py, `ZeROOrderedDict`).
        """
        shard = self._of.get(parameter)
        if shard is None or shard.status == HERE or not self._running:
            return
        reader = self._running[-1]
        self._external.setdefault(reader, []).append(shard)
        with torch.no_grad():
            if shard.status == GONE:
                self._gather([shard])
            self._handles.pop(shard).wait()
        shard.users.add(reader)

    def fetch(self, module: nn.Module, *, is_backward: bool) -> None:
        """`_fetch_sub_module_impl`: gather what `module` needs, and prefetch."""
        if is_backward:
            self._active[module] = None
        else:
            self._running.append(module)
        if not self._is_complete:
            self._order.append(module)
        shards = self._own(module)
        self._gather([shard for shard in shards if shard.status == GONE])
        for shard in shards:
            shard.users.add(module)
            if shard in self._handles:
                self._handles.pop(shard).wait()
        if self._is_complete:
            self._prefetch({shard for shard in shards if self._fetched.get(shard, -1) < self._step})
        self._step += 1

    def _prefetch(self, fresh: set[Shard]) -> None:
        keys, ahead, elements = self._engine.keys, [], 0
        while self._queue and fresh:
            shard, at = self._queue.popleft()
            self._fetched[shard] = at
            fresh.discard(shard)
        most = min(keys.live - self._available, keys.prefetch)
        while self._queue and elements < most:
            shard, at = self._queue.popleft()
            self._fetched[shard] = max(self._fetched.get(shard, -1), at)
            if shard.status == GONE and shard not in ahead:
                ahead.append(shard)
                elements += shard.numel
        self._gather(ahead)

    def _gather(self, shards: Sequence[Shard]) -> None:
        if shards:
            shards = sorted(shards, key=lambda shard: shard.number)
            self._handles |= dict.fromkeys(shards, Gathering(shards, self._engine))
            self._available += sum(shard.numel for shard in shards)

    def release(self, module: nn.Module, *, is_backward: bool) -> None:
        """`release_sub_module`."""
        if is_backward:
            self._active.pop(module, None)
        else:
            self._running.pop()
        for shard in self._own(module):
            shard.users.discard(module)
            if not self._is_complete or not (shard.persists or self._is_used_soon(shard)):
                self._free(shard)

    def _is_used_soon(self, shard: Shard) -> bool:
        """`__params_to_release`: a use was prefetched, or is less than `reuse` elements away."""
        if self._fetched.get(shard, -1) > self._step:
            return True
        uses = self._uses[shard]
        k = bisect_left(uses, self._step)
        distance = self._passed[uses[k]] - self._passed[self._step] if k < len(uses) else None
        return distance is not None and distance < self._engine.keys.reuse

    def _free(self, shard: Shard) -> None:
        if shard.status == HERE and not shard.users:
            shard.free()
            self._available -= shard.numel

    def finish_backward(self) -> None:
        """`release_backward_leftovers`."""
        while self._active:
            module, _ = self._active.popitem()
            for shard in self._own(module):
                shard.users.discard(module)
                if not shard.persists:
                    self._free(shard)

    def free_all(self) -> None:
        """`release_and_reset_all`: before the update."""
        for shard in self._of.values():
            if shard in self._handles:
                self._handles.pop(shard).wait()
            shard.users.clear()
            self._free(shard)


class Gathered(RuledEngine):
    """Stage 3 (stage3.py and parameter_offload.py)."""

    def prepare(self) -> None:
        keys, on_host = self.keys, self.keys.offloads
        self._shards = [self._shard(p, k) for k, p in enumerate(self.module.parameters())]
        self._coordinator = Coordinator(self, self._shards)
        self._of = {shard.parameter: shard for shard in self._shards}
        trained = [[self._of[p] for p in group] for group in self.groups]
        self._frozen = [
            self.new(s.part, keys.dtype, PARAMETERS) for s in self._shards if not s.parameter.requires_grad
        ]
        self._runs = [(k, run) for k, group in enumerate(trained) for run in _runs(group, keys.sub_group)]
        self._parts, self._masters, self._gradients = [], [], []
        for _, run in self._runs:
            size = sum(shard.part for shard in run)
            part = self.new(size, keys.dtype, PARAMETERS, on_host=keys.offloads_parameters)
            self._parts.append(part)
            is_master = keys.dtype == torch.float32 and on_host == keys.offloads_parameters and not on_host
            self._masters.append(
                part if is_master else self.new(size, torch.float32, MASTER, on_host=on_host)
            )
            if on_host:
                self._gradients.append(self.new(size, torch.float32, GRADIENTS, on_host=True))
        self._bucket = self.new(keys.bucket, keys.reduced, BUCKETS)
        total = sum(shard.part for _, run in self._runs for shard in run)
        sums = self.new(total, keys.accumulated, GRADIENTS, on_host=on_host)
        start = 0
        for shard in (shard for _, run in self._runs for shard in run):
            shard.sums = sums[start : start + shard.part]
            start += shard.part
        self._queue: list[Shard] = []
        for shard in self._shards:
            shard.free()
        self.listen(self.take)
        self._watch()

    def _shard(self, parameter: nn.Parameter, number: int) -> Shard:
        numel = parameter.numel()
        part = -(-numel // self.world)
        return Shard(parameter, number, numel, parameter.shape, part, numel <= self.keys.threshold)

    def _watch(self) -> None:
        """`setup_zero_stage3_hooks`: fetch before and release after a module, forward and backward."""
        self.module.register_forward_pre_hook(lambda *_: self._coordinator.begin())
        for module in self.module.modules():
            module._parameters = ReadParameters(module._parameters, self._coordinator.read)
            module.register_forward_pre_hook(partial(_before_forward, self._coordinator))
            module.register_forward_hook(partial(_after_forward, self._coordinator))

    @torch.no_grad()
    def take(self, parameter: nn.Parameter) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: copy the gradient to the one bucket."""
        shard = self._of[parameter]
        filled = sum(s.numel for s in self._queue)
        if filled and filled + shard.numel > self.keys.bucket:
            self._reduce()
            filled = 0
        gradient = parameter.grad
        assert gradient is not None
        if filled + shard.numel <= self.keys.bucket:
            gradient = self._bucket[filled : filled + shard.numel].view(shard.shape).copy_(gradient)
        shard.gradient, parameter.grad = gradient, None
        self._queue.append(shard)

    def _reduce(self) -> None:
        """`__avg_scatter_grads`: interleave the ranks' parts in a copy, and reduce-scatter it."""
        keys = self.keys
        shards = sorted(self._queue, key=lambda shard: shard.number)
        self._queue.clear()
        if not shards:
            return
        casts = [self.call(s.gradient.to(keys.reduced), BUCKETS) for s in shards if s.gradient is not None]
        parts = sum(shard.part for shard in shards)
        if len(shards) == 1 and shards[0].numel % self.world == 0:
            sent = casts[0].reshape(-1)
        else:
            sent = self.new(parts * self.world, keys.reduced, BUCKETS)
        dist.reduce_scatter_tensor(sent[:parts], sent)
        mine = sent[:parts]
        if keys.reduced != keys.accumulated:
            mine = self.new(parts, keys.accumulated, BUCKETS)
        start = 0
        for shard in shards:
            self._keep(shard, mine[start : start + shard.part])
            start += shard.part

    def _keep(self, shard: Shard, part: Tensor) -> None:
        """`partition_grads`."""
        assert shard.sums is not None
        if self.micro and self.keys.offloads and self.is_apart:
            self.new(shard.part, self.keys.accumulated)
        if self.micro and self.keys.accumulated != part.dtype:
            self.new(shard.part, self.keys.accumulated)
        shard.sums.copy_(part)
        if self.keys.offloads and self.is_boundary:
            self.new(shard.part, torch.float64)  # of the norm
        shard.gradient = None

    def finish_backward(self) -> None:
        self._reduce()
        self._coordinator.finish_backward()

    def update(self) -> None:
        """`step`: one run of sub_group_size elements after the other; then what persists is gathered."""
        self._coordinator.free_all()
        if not self.keys.offloads:
            for shard in (shard for _, run in self._runs for shard in run):
                self.new(shard.part, torch.float64)  # of the norm
        for number, (group, _) in enumerate(self._runs):
            master, part = self._masters[number], self._parts[number]
            if self.keys.offloads:
                self.adam(number, group, master, self._gradients[number])
            else:
                flat = self.new(master.numel(), self.keys.accumulated, GRADIENTS)
                gradient = self.call(flat.to(torch.float32), GRADIENTS)
                del flat
                self.adam(number, group, master, gradient)
                del gradient
            if part is not master:
                part.copy_(master)
        for shard in self._shards:
            if shard.persists:
                Gathering([shard], self).wait()


def _before_forward(coordinator: Coordinator, module: nn.Module, inputs: Any) -> Any:
    """Fetch; release once the gradients of all inputs have been computed."""
    with torch.no_grad():
        coordinator.fetch(module, is_backward=False)
    remaining = [0]

    def arrived() -> None:
        remaining[0] -= 1
        if remaining[0] == 0:
            coordinator.release(module, is_backward=True)

    def crossed(x: Tensor) -> Tensor:
        remaining[0] += x.requires_grad
        return crossing(x, arrived)

    return tree_map_only(Tensor, crossed, inputs)


def _after_forward(coordinator: Coordinator, module: nn.Module, _given: Any, out: Any) -> Any:
    """Release; fetch as soon as a gradient of an output arrives."""
    with torch.no_grad():
        coordinator.release(module, is_backward=False)
    fetch = partial(coordinator.fetch, module, is_backward=True)
    return tree_map_only(Tensor, lambda x: crossing(x, fetch), out)


def _runs(shards: Collection[Shard], most: int) -> list[list[Shard]]:
    """`_create_fp16_sub_groups`."""
    runs: list[list[Shard]] = [[]]
    for shard in shards:
        if sum(each.part for each in runs[-1]) >= most:
            runs.append([])
        runs[-1].append(shard)
    return [run for run in runs if run]
