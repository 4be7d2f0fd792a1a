"""Steps of one rank under a ledger: the real engine, workload and training loop, on tensors or fakes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from zbench.engine.assembly.build import Instruments
from zbench.engine.memory.kinds import DeviceMemory, Memories, PinnedHostMemory
from zbench.engine.transport.choose import ChooseTransport, choose_collectives
from zbench.estimate.ledger import AllocationLedger
from zbench.estimate.result import StepWork
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import TrafficMeter
from zbench.record.record import Traffic
from zbench.spec.trial import TrialSpec
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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What surrounds the steps. batches: the micro-batches of a step, of those that the trainer gives. begun:
    called before the step that is watched. work: what was counted since.
    """

    transport: ChooseTransport = choose_collectives
    batches: Callable[[Batches], Batches] = list
    begun: Callable[[], None] = lambda: None
    work: Callable[[], StepWork] = StepWork


def watched_step(
    trial: TrialSpec, workload: Workload, ledger: AllocationLedger, base_dir: Path, around: Surroundings
) -> Step:
    """Build one rank, train WARMUP steps and one more, and return what that one showed."""
    traffic = TrafficMeter(clock := LedgerClock(ledger))
    instruments = Instruments(
        wrap_collectives=traffic.count,
        memories=lambda device: Memories(DeviceMemory(device), LedgerHostMemory(device, ledger)),
        transport=around.transport,
    )
    cpu = torch.device("cpu")
    trainer = Trainer(trial, workload, base_dir, instruments, device=cpu, clock=clock)
    built = ledger.peak[False]
    ledger.phase = "batch"
    begin = ledger.moment
    for step in range(1 + WARMUP):
        with _disable_current_modes():
            made = trainer.batches(step)
        batches = around.batches(made)
        traffic.take()
        ledger.restart_peak()
        if step == WARMUP:
            around.begun()
        begin = ledger.moment
        trainer.step(batches)
        del batches
    moved = traffic.take()
    with _disable_current_modes():
        flops = workload.flops_per_micro_batch
    found = Step(
        ledger,
        begin,
        ledger.moment,
        built,
        trainer.engine.memory_by_category(),
        moved,
        None if flops is None else flops * trainer.backwards,
        around.work(),
    )
    trainer.engine.close()
    return found
