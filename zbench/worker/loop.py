"""The training loop of one rank: warm-up, then timed steps, each fenced by barriers and observed from
outside."""

import gc
import itertools
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench import clocks
from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import StepInfo
from zbench.job.jobs import RankJob
from zbench.job.turns import Turns, turn_lengths
from zbench.measure.clock import PhaseClock, synchronize
from zbench.measure.counts import StepCounts
from zbench.measure.memory import PeakMeter, StepMemory
from zbench.measure.traffic import TrafficMeter
from zbench.record.record import Traffic
from zbench.spec.trial import TrialSpec, accumulation
from zbench.worker.engines import build, make_model
from zbench.workloads import Batch, Workload, seed_all, weighted
from zbench.workloads.offloading import Offload


@dataclass(frozen=True, slots=True)
class Meters:
    """The instruments of a run: time by phase, memory, traffic and operations."""

    clock: PhaseClock
    memory: StepMemory
    traffic: TrafficMeter
    counts: StepCounts

    @classmethod
    def on(cls, device: torch.device, meter: PeakMeter) -> Self:
        """Return the instruments of one rank on `device`; `meter` measures its memory."""
        clock = PhaseClock()
        return cls(clock, StepMemory(meter, device), TrafficMeter(clock), StepCounts(device))


@dataclass(slots=True)
class Samples:
    """The measurements of the timed steps, one entry per step; traffic is the largest over steps.

    sizes: see `Workload.size`, of all ranks. cpu_seconds: of the processes of all ranks. turns: the number of
    timed steps of each turn.
    """

    step_seconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    traffic: dict[str, Traffic] = field(default_factory=dict)

    def add_up(self) -> None:
        """Add up sizes and CPU times over the ranks; every rank must call it."""
        sums = torch.tensor([self.sizes, self.cpu_seconds], dtype=torch.float64)
        dist.all_reduce(sums)
        self.sizes, self.cpu_seconds = [round(size) for size in sums[0].tolist()], sums[1].tolist()

    def seconds_by_turn(self) -> list[float]:
        """Return the mean seconds of the timed steps of each turn."""
        ends = list(itertools.accumulate(self.turns, initial=0))
        return [statistics.fmean(self.step_seconds[a:b]) for a, b in itertools.pairwise(ends) if b > a]


MicroBatch = tuple[int, float, Batch]
"""Its seed, what its loss is multiplied by, and its tensors."""


class Trainer:
    """Runs optimizer steps of one rank of `trial`, whose model and engine it builds."""

    def __init__(
        self,
        trial: TrialSpec,
        workload: Workload,
        base_dir: Path,
        instruments: Instruments,
        *,
        device: torch.device,
        clock: PhaseClock,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        spec = trial.engine
        model = make_model(trial, workload, instruments, device, group)
        self.engine = build(spec.engine, model, spec, base_dir, instruments, group)
        self.model = model
        self._called: nn.Module = getattr(self.engine, "module", model)  # what an engine wraps the model in
        self._accumulation = accumulation(spec, trial.workload)
        self._marks_last = spec.accumulation_mode == "multi_backward"
        self._workload, self._device, self._clock = workload, device, clock
        torch.cuda.empty_cache()  # of the whole model; without CUDA it does nothing
        offloads = trial.workload.offload_activations
        self._saving = Offload(instruments.on_host).saving if offloads else nullcontext

    @property
    def backwards(self) -> int:
        """Micro-batches of one step."""
        return self._accumulation.backwards

    def batches(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of one step, on the device."""
        rank = dist.get_rank()
        micros = range(self.backwards)
        seeds = [self._workload.micro_seed(step, micro, rank) for micro in micros]
        batches = [self._workload.batch(step, micro, rank) for micro in micros]
        weights = self._workload.loss_weights(step, self.backwards)[rank]
        on_device = [tuple(x.to(self._device) for x in batch) for batch in batches]
        return list(zip(seeds, weights, on_device, strict=True))

    def size(self, batches: list[MicroBatch]) -> int:
        """Return the size of one step's micro-batches together; see `Workload.size`."""
        return sum(self._workload.size(batch) for _, _, batch in batches)

    def step(self, batches: list[MicroBatch]) -> tuple[list[Tensor], StepInfo]:
        """Run one optimizer step; return each micro-batch's loss, still on the device, and what the engine
        says."""
        losses = []
        for micro, (seed, weight, batch) in enumerate(batches):
            seed_all(seed, self._device)
            with self._clock.phase("forward"), self._saving():
                loss = self._workload.loss(self._called, batch)
                losses.append(loss.detach())
                loss = weighted(loss, weight, self._accumulation.loss_divisor)
            with self._clock.phase("backward"):
                self.engine.backward(loss, micro == len(batches) - 1 if self._marks_last else None)
            del loss
        with self._clock.phase("optimizer"):
            return losses, self.engine.step()

    def evaluate(self, step: int) -> None:
        """Compute the loss of one micro-batch of `step` in eval mode and without gradients.

        Modules that were in eval mode before, such as a frozen batch norm, stay in it afterwards.
        """
        seed, _, batch = self.batches(step)[0]
        seed_all(seed, self._device)
        kept_in_eval = [module for module in self._called.modules() if not module.training]
        self._called.eval()
        with torch.no_grad():
            self._workload.loss(self._called, batch)
        self._called.train()
        for module in kept_in_eval:
            module.training = False


def run_steps(
    trainer: Trainer,
    meters: Meters,
    *,
    warmup: int,
    timed: int,
    fence: "Fence",
    after_step: Callable[[int, float, list[float], StepInfo], None],
) -> Samples:
    """Run all steps; `after_step(step, seconds, losses, info)` runs after each step and is not measured.

    A step's seconds are those of the slowest rank: from the moment that all ranks are ready, with their
    micro-batches on the device, to the end of its `step()`. A trial that takes turns waits for its turn
    before it continues; the first step of a turn is not timed.
    """
    samples = Samples()
    turns = fence.turns
    lengths = turn_lengths(timed) if turns.are_taken else [timed]
    begins_turn = {warmup + sum(lengths[:turn]) for turn in range(len(lengths))}
    for step in range(warmup + timed):
        is_first = step in begins_turn
        if step == warmup:
            gc.collect()
        if is_first:
            samples.turns.append(0)
            with meters.memory.aside():
                turns.wait()  # no step is under way: after each one `slowest` waits for the device
        batches = trainer.batches(step)
        _take(meters)
        meters.memory.begin()
        meters.counts.begin()
        begin = fence.ready()
        losses, info = trainer.step(batches)
        seconds = fence.slowest(begin)
        if step >= warmup:
            meters.memory.end()
            meters.counts.end()
            phases, traffic = _take(meters)
            for kind, of_step in traffic.items():
                most = samples.traffic.get(kind, of_step)
                samples.traffic[kind] = max(of_step, most, key=attrgetter("bytes"))
            if not (is_first and turns.are_taken):
                samples.turns[-1] += 1
                samples.step_seconds.append(seconds)
                samples.sizes.append(trainer.size(batches))
                samples.cpu_seconds.append(fence.cpu_seconds)
                samples.phases.append(phases)
        del batches
        with meters.memory.aside():
            after_step(step, seconds, [float(loss) for loss in losses], info)
    turns.over()
    samples.add_up()
    return samples


def _take(meters: Meters) -> tuple[dict[str, float], dict[str, Traffic]]:
    """Return and reset clock and traffic: the time between steps belongs to no step."""
    return meters.clock.take(), meters.traffic.take()


class Fence:
    """Synchronises all ranks, and the device. cpu_seconds: of this rank's process in the last step."""

    def __init__(self, device: torch.device, job: RankJob) -> None:
        self._device = device
        # kept: a thread of gloo may hold what it reduced for some time, and a step's memory would count that
        self._token = torch.zeros(1, dtype=torch.float64)
        self.turns = Turns(job.turns, job.world_size)
        self.cpu_seconds = self._cpu_begin = 0.0

    def ready(self) -> float:
        """Wait for all ranks; return the time."""
        synchronize(self._device)
        dist.all_reduce(self._token.zero_())
        self._cpu_begin = clocks.process_time()
        return clocks.perf_counter()

    def slowest(self, begin: float) -> float:
        """Return the seconds of the slowest rank since its `begin`, the same on all ranks.

        Each rank stops its own clock before it communicates, so that the message's latency does not count.
        """
        synchronize(self._device)
        seconds = clocks.perf_counter() - begin
        self.cpu_seconds = clocks.process_time() - self._cpu_begin
        dist.all_reduce(self._token.fill_(seconds), dist.ReduceOp.MAX)
        return float(self._token)
