"""Steps of one rank under a ledger: the real engine, workload and training loop, on tensors or fakes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from zbench.engine.assembly.build import Instruments as EngineInstruments
from zbench.engine.memory.kinds import DeviceMemory, Memories, PinnedHostMemory
from zbench.engine.protocols import Collectives, TrainingEngine
from zbench.engine.transport.choose import ChooseTransport, choose_collectives
from zbench.estimate.ledger import AllocationLedger
from zbench.estimate.work import StepWork
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import CountingCollectives
from zbench.record.record import Traffic
from zbench.spec.trial import TrialSpec
from zbench.worker.engines import build
from zbench.worker.loop import Trainer
from zbench.workloads import Batch, Workload

WARMUP = 1
Batches = list[tuple[int, Batch]]


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
    work: StepWork


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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What surrounds the steps. batches: the micro-batches of a step, of those that the trainer gives. begun:
    called before each step. work: what was counted since.
    """

    transport: ChooseTransport = choose_collectives
    batches: Callable[[Batches], Batches] = list
    begun: Callable[[], None] = lambda: None
    work: Callable[[], StepWork] = StepWork


def watched_step(
    trial: TrialSpec, workload: Workload, ledger: AllocationLedger, base_dir: Path, around: Surroundings
) -> Step:
    """Build one rank, train WARMUP steps and one more, and return what that one showed."""
    clock, counting = LedgerClock(ledger), list[CountingCollectives]()

    def count(inner: Collectives) -> Collectives:
        counting.append(CountingCollectives(inner, clock))
        return counting[-1]

    instruments = EngineInstruments(
        wrap_collectives=count,
        memories=lambda device: Memories(DeviceMemory(device), LedgerHostMemory(device, ledger)),
        transport=around.transport,
    )
    rank = prepare_step(trial, workload, base_dir, instruments, clock)
    built = ledger.peak[False]
    ledger.phase = "batch"
    begin = ledger.moment
    for step in range(1 + WARMUP):
        with _disable_current_modes():
            made = rank.trainer.batches(step)
        batches = around.batches(made)
        for counted in counting:
            counted.take()
        ledger.restart_peak()
        around.begun()
        begin = ledger.moment
        rank.trainer.step(batches)
        del batches
    traffic = {k: v for c in counting for k, v in c.take().items()}
    with _disable_current_modes():
        flops = workload.flops_per_micro_batch
    found = Step(
        ledger,
        begin,
        ledger.moment,
        built,
        rank.engine.memory_by_category(),
        traffic,
        None if flops is None else flops * rank.trainer.backwards,
        around.work(),
    )
    rank.engine.close()
    return found
