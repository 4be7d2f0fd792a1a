"""One rank of a trial, run by one process without data: the real engine, workload and training loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from zbench.engine.compiled.graph_pass import deliver, reduce_gradient
from zbench.engine.protocols import Memory, Work
from zbench.engine.transport.agreement import Call
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.buffers import share_storage
from zbench.engine.transport.choose import Transport, grouped
from zbench.engine.transport.works import Done, Then
from zbench.estimate.counting import WorkCounter
from zbench.estimate.ledger import AllocationLedger
from zbench.estimate.result import StepWork
from zbench.estimate.stepping import Batches, Step, Surroundings, watched_step
from zbench.spec.trial import TrialSpec
from zbench.workloads import build_workload

aten = torch.ops.aten
_LARGEST = 1 << 22  # elements
_WHOLE = frozenset({torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_ATTRIBUTE = "_zbench_value"
_FACTORIES = frozenset(
    {
        torch.ops.aten.arange.default,
        torch.ops.aten.arange.start,
        torch.ops.aten.arange.start_step,
        torch.ops.aten.full.default,
        torch.ops.aten.ones.default,
        torch.ops.aten.zeros.default,
        torch.ops.aten.scalar_tensor.default,
    }
)


class SimulatedLedger(AllocationLedger):  # type: ignore[no-untyped-call]
    """Over fake tensors: answers what the engine reads from them, knows whole numbers, counts the work."""

    def __init__(self) -> None:
        super().__init__()
        self._work: WorkCounter | None = None

    def count_work(self) -> None:
        """Count the work of the operators from here on."""
        self._work = WorkCounter(self.is_offloaded)

    def work(self) -> StepWork:
        """Return what was counted."""
        return StepWork() if self._work is None else self._work.take()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What the compiler runs while it compiles is no part of the step; what it compiled is."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is reduce_gradient:  # what a compiled backward calls is the engine's code: watched, too
            with self:
                deliver(*args)
            return None
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self._work is not None:
            self._work.note(func, args, kwargs or {}, out)
        return out

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten._local_scalar_dense.default:
            known = value_of(args[0])
            if known is not None:
                with _disable_current_modes():
                    return known.item()
            if self.phase != "forward":
                return _zero(args[0].dtype)
        if func is aten.equal.default and self.phase != "forward":
            return True
        out = func(*args, **kwargs)
        if isinstance(out, FakeTensor):  # a tensor that is referred to weakly cannot be swapped by Module.to
            out.fake_mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        follow(func, args, kwargs, out)
        return out


def _zero(dtype: torch.dtype) -> Any:
    return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0


def simulate(trial: TrialSpec, base_dir: Path, *, rank: int = 0) -> Step:
    """Run a step of one rank of `trial` without data."""
    run = trial.run
    if trial.engine.compile != "off":
        torch._dynamo.reset()  # after a few models of one class it would compile no more
    workload = build_workload(trial.workload, seed=run.seed, world_size=run.world_size, base_dir=base_dir)
    with world(rank, run.world_size):
        ledger = SimulatedLedger()
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake, ledger.watching():
            around = Surroundings(simulated_transport, _faked, ledger.count_work, ledger.work)
            return watched_step(trial, workload, ledger, base_dir, around)


@contextmanager
def world(rank: int, size: int) -> Iterator[None]:
    """Be one rank of a process group that sends nothing."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

    dist.init_process_group("fake", rank=rank, world_size=size, store=HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def simulated_transport(
    group: dist.ProcessGroup | None, local: Memory, host: Memory, shard_group_size: int | None = None
) -> Transport:
    """Return collectives that allocate what those of a real group would."""
    found = group or dist.group.WORLD
    assert found is not None
    return grouped(found, local.device, shard_group_size, SimulatedCrossMemory)


def _faked(batches: Batches) -> Batches:
    return [(seed, tuple(_fake(x) for x in batch)) for seed, batch in batches]


def _fake(x: Tensor) -> Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    set_value(made, x)
    return made


def set_value(tensor: Tensor, value: Tensor) -> None:
    """Note the value of a fake tensor."""
    setattr(tensor, _ATTRIBUTE, value)


def value_of(tensor: Tensor) -> Tensor | None:
    """Return a fake tensor's value, where it is known."""
    return tensor.__dict__.get(_ATTRIBUTE)


def follow(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Compute the value of `out` too, where it is a small tensor of whole numbers that are known."""
    if not isinstance(out, Tensor) or out.dtype not in _WHOLE or out.numel() > _LARGEST:
        return
    given = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
    if not given and func not in _FACTORIES:
        return
    if any(value_of(x) is None for x in given):
        out.__dict__.pop(_ATTRIBUTE, None)
        return
    with _disable_current_modes():
        known = tree_map(lambda x: value_of(x) if isinstance(x, Tensor) else x, (args, kwargs))
        set_value(out, func(*known[0], **known[1]))


class SimulatedCrossMemory(GroupCollectives):
    """Ranks of one host read one another's memory: a collective's own pieces are freed within it."""

    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work:
        if self.shards == self.world_size or not share_storage(send, out):
            return Done()
        sums = torch.empty_like(out)

        def finish() -> None:
            out.copy_(sums)

        return Then(Done(), finish)

    def _all_gather(self, flat: Tensor, call: Call) -> Work:
        return Done()
