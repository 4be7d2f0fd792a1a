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

from zbench.engine.compiled.graph_pass import deliver, reduce_gradient
from zbench.engine.protocols import Memory
from zbench.engine.transport.choose import Transport, grouped
from zbench.estimate.counting import WorkCounter
from zbench.estimate.ledger import AllocationLedger
from zbench.estimate.stepping import Batches, Step, Surroundings, watched_step
from zbench.estimate.transport import SimulatedCrossMemory
from zbench.estimate.values import follow, set_value, value_of
from zbench.estimate.work import StepWork
from zbench.spec.trial import TrialSpec
from zbench.workloads import build_workload

aten = torch.ops.aten


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
