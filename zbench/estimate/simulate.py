"""One rank of a trial, run by one process without data: the real engine, workload and training loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from zbench.engine.assembly.build import Instruments as EngineInstruments
from zbench.engine.memory.kinds import DeviceMemory, Memories, PinnedHostMemory
from zbench.engine.protocols import Collectives, Memory, TrainingEngine
from zbench.engine.transport.choose import Transport, grouped
from zbench.estimate.ledger import AllocationLedger
from zbench.estimate.transport import SimulatedCrossMemory
from zbench.estimate.values import follow, set_value, value_of
from zbench.estimate.views import NOT_TAKEN, shortcut
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import CountingCollectives
from zbench.record.record import Traffic
from zbench.spec.trial import TrialSpec
from zbench.worker.engines import build
from zbench.worker.loop import Trainer
from zbench.workloads import Workload, build_workload

aten = torch.ops.aten
WARMUP = 1


class LedgerClock(PhaseClock):
    """Tells the ledger the phase of the step."""

    def __init__(self, ledger: AllocationLedger) -> None:
        super().__init__()
        self._ledger = ledger

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with self._ledger.during(name):
            yield


class LedgerHostMemory(PinnedHostMemory):
    """Host memory whose allocations the ledger counts as such."""

    def __init__(self, device: torch.device, ledger: AllocationLedger) -> None:
        super().__init__(device)
        self._ledger = ledger

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        with self._ledger.on_host():
            return super().zeros(numel, dtype)

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        with self._ledger.on_host():
            return super().empty(numel, dtype)


class SimulatedLedger(AllocationLedger):  # type: ignore[no-untyped-call]
    """Over fake tensors: answers what the engine reads from them, and knows whole numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = shortcut(func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs) if out is NOT_TAKEN else out

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
        follow(func, args, kwargs, out)
        return out


def _zero(dtype: torch.dtype) -> Any:
    return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0


@dataclass(slots=True)
class Step:
    """What one step showed: the ledger from moment `begin` to `end`, and the peak of building before it."""

    ledger: AllocationLedger
    begin: int
    end: int
    build_device_bytes: int
    engine_bytes: dict[str, int]
    traffic: dict[str, Traffic]
    flops: float | None


@dataclass(slots=True)
class Rank:
    """One rank, ready to train."""

    engine: TrainingEngine
    trainer: Trainer


def prepare_step(
    trial: TrialSpec,
    workload: Workload,
    base_dir: Path,
    instruments: EngineInstruments,
    clock: PhaseClock | None = None,
    group: dist.ProcessGroup | None = None,
) -> Rank:
    """Build the model and the engine of one rank."""
    spec = trial.engine
    model = workload.make_model()
    engine = build(spec.engine, model, spec, base_dir, instruments, group)
    cpu = torch.device("cpu")
    trainer = Trainer.of(trial, workload, model, engine, device=cpu, clock=clock or PhaseClock())
    return Rank(engine, trainer)


def simulate(trial: TrialSpec, base_dir: Path, *, rank: int = 0) -> Step:
    """Run a step of one rank of `trial` without data."""
    run = trial.run
    workload = build_workload(trial.workload, seed=run.seed, world_size=run.world_size, base_dir=base_dir)
    with world(rank, run.world_size):
        ledger = SimulatedLedger()
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake, ledger.watching():
            return _run(trial, workload, ledger, base_dir)


@contextmanager
def world(rank: int, size: int) -> Iterator[None]:
    """Be one rank of a process group that sends nothing."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

    dist.init_process_group("fake", rank=rank, world_size=size, store=HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _run(trial: TrialSpec, workload: Workload, ledger: AllocationLedger, base_dir: Path) -> Step:
    clock, counting = LedgerClock(ledger), list[CountingCollectives]()

    def count(inner: Collectives) -> Collectives:
        counting.append(CountingCollectives(inner, clock))
        return counting[-1]

    instruments = EngineInstruments(
        wrap_collectives=count,
        memories=lambda device: Memories(DeviceMemory(device), LedgerHostMemory(device, ledger)),
        transport=simulated_transport,
    )
    rank = prepare_step(trial, workload, base_dir, instruments, clock)
    built = ledger.peak[False]
    ledger.phase = "batch"
    begin = ledger.moment
    for step in range(1 + WARMUP):
        with _disable_current_modes():
            real = rank.trainer.batches(step)
        batches = [(seed, tuple(_fake(x) for x in batch)) for seed, batch in real]
        for counted in counting:
            counted.take()
        ledger.restart_peak()
        begin = ledger.moment
        rank.trainer.step(batches)
        del batches
    traffic = {k: v for c in counting for k, v in c.take().items()}
    with _disable_current_modes():
        flops = workload.flops_per_micro_batch
    micros = rank.trainer.backwards
    found = Step(
        ledger,
        begin,
        ledger.moment,
        built,
        rank.engine.memory_by_category(),
        traffic,
        None if flops is None else flops * micros,
    )
    rank.engine.close()
    return found


def simulated_transport(
    group: dist.ProcessGroup | None, local: Memory, host: Memory, shard_group_size: int | None = None
) -> Transport:
    """Return collectives that allocate what those of a real group would."""
    found = group or dist.group.WORLD
    assert found is not None
    return grouped(found, local.device, shard_group_size, SimulatedCrossMemory)


def _fake(x: Tensor) -> Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    set_value(made, x)
    return made
