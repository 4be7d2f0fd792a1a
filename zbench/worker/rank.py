"""One rank of one trial, from its specification to its result."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import StepInfo
from zbench.measure.ceilings import utilization
from zbench.measure.counts import count_operators
from zbench.measure.memory import choose_meter, largest
from zbench.record.inputs import changed
from zbench.record.record import Correctness
from zbench.spec.accumulation import accumulation
from zbench.spec.trial import TrialSpec
from zbench.verify.digest import digest
from zbench.verify.trajectory import Trajectory, load_reference
from zbench.verify.verdict import Judgement, judge, worse
from zbench.worker import process
from zbench.worker.inputs import inputs_of
from zbench.worker.job import RankJob
from zbench.worker.loop import Fence, Meters, Trainer, run_steps
from zbench.worker.observer import Observer
from zbench.worker.progress import Progress
from zbench.worker.timing import summarise
from zbench.worker.trace import Subject, flops_of_a_rank, look_inside
from zbench.workloads import Workload, build_workload

T = TypeVar("T")


def trial_workload(trial: TrialSpec, base_dir: str) -> Workload:
    """Return the workload of a trial: the same for every rank and for the reference."""
    run = trial.run
    return build_workload(trial.workload, seed=run.seed, world_size=run.world_size, base_dir=Path(base_dir))


def run_trial(job: RankJob, trial: TrialSpec) -> dict[str, Any]:
    """Run this rank's part of a trial; return the result in the record's fields, complete on rank 0."""
    device = process.start(job, trial)
    workload = trial_workload(trial, job.base_dir)
    digest(torch.zeros(1, device=device))  # its constants must be there before memory is measured
    limit = process.MemoryLimit(trial.run.memory_limit)
    meter, warning = choose_meter(device)
    meters = Meters.on(device, meter)
    trainer = _trainer(job, trial, workload, meters, device)
    inputs = inputs_of(trial, Path(job.base_dir), workload.data)
    engine = trainer.engine
    observer = Observer(engine, bits=trial.verify.mode != "off" and job.reference_path is not None)
    warmup, timed, every = trial.run.warmup_steps, trial.run.steps, trial.run.evaluate_every
    with Progress(job.progress_path if job.rank == 0 else None) as progress:

        def after_step(step: int, seconds: float, losses: list[float], info: StepInfo) -> None:
            if every and (step + 1) % every == 0:
                trainer.evaluate(step)
            with limit.lifted():
                observer.after_step(losses, info)
            if step < warmup:
                progress.step("warmup", step + 1, warmup, seconds)
            else:
                progress.step("timed", step - warmup + 1, timed, seconds)

        fence = Fence(device, job)
        samples = run_steps(trainer, meters, warmup=warmup, timed=timed, fence=fence, after_step=after_step)
    memory = largest(_from_all(meters.memory.summary(engine.memory_by_category())))
    with limit.lifted():
        judgement = _judge(job, observer, inputs)
        counts = meters.counts.smallest | _operators(trial, trainer, device)
        if job.rank != 0 and job.trace is None:
            engine.close()
            return {}
        timing = summarise(samples, workload, accumulation(trial.engine, trial.workload).backwards)
        if job.trace is not None:
            again = partial(_step_after, trainer, warmup + timed + 1)
            subject = Subject(again, meters.clock, meter, engine, device)
            look_inside(Path(job.trace), subject, limit=trial.run.memory_limit, flops=flops_of_a_rank(timing))
    engine.close()
    return {
        "timing": dataclasses.asdict(timing)
        | {"mfu": utilization(timing.tflops, device, trial.engine.dtype)},
        "memory": dataclasses.asdict(memory),
        "traffic": {kind: dataclasses.asdict(traffic) for kind, traffic in samples.traffic.items()},
        "counts": counts,
        "correctness": dataclasses.asdict(judgement.correctness),
        "warnings": ([warning] if warning else []) + judgement.warnings,
        "inputs": inputs,
    }


def _step_after(trainer: Trainer, step: int) -> object:
    """Run one more step after the measured ones."""
    return trainer.step(trainer.batches(step))


def _trainer(
    job: RankJob, trial: TrialSpec, workload: Workload, meters: Meters, device: torch.device
) -> Trainer:
    instruments = Instruments(wrap_collectives=meters.traffic.count)
    place = Path(job.base_dir)
    return Trainer.build(trial, workload, place, instruments, device=device, clock=meters.clock)


def _operators(trial: TrialSpec, trainer: Trainer, device: torch.device) -> dict[str, int]:
    """Return the operators and FLOPs of one more step; none where a dispatch mode would change the step.

    Under a dispatch mode a compiled model runs eagerly, and FSDP2 and DeepSpeed replace tensors by their own.
    """
    if trial.engine.compile != "off" or trial.engine.engine in ("fsdp2", "deepspeed"):
        return {}
    step = trial.run.warmup_steps + trial.run.steps
    return count_operators(lambda: trainer.step(trainer.batches(step)), device)


def _judge(job: RankJob, observer: Observer, inputs: Mapping[str, str]) -> Judgement:
    """Return the verdict; where ranks hold different parameters, the gravest over ranks."""
    if not observer.bits or job.reference_path is None:
        return Judgement(Correctness("unchecked"))
    mine = observer.trajectory()
    first = _first_disagreement(mine)
    judgement = Judgement(Correctness("unchecked"))
    if job.rank == 0 or first is not None:
        judgement = _judged(mine, job.reference_path, inputs)
    if first is None:
        return judgement
    judgement = worse(_from_all(judgement))
    warning = f"ranks hold different parameters since step {first}; the verdict is the gravest over ranks"
    return Judgement(judgement.correctness, [*judgement.warnings, warning])


def _judged(mine: Trajectory, path: str, inputs: Mapping[str, str]) -> Judgement:
    reference = load_reference(Path(path))
    names = changed(reference.inputs, inputs)
    if names:
        said = f"{', '.join(names)} changed after the reference was computed; start a new run"
        return Judgement(Correctness("unchecked"), [said])
    return judge(mine, reference)


def _first_disagreement(mine: Trajectory) -> int | None:
    """Return the first step (from 1) after which some rank's parameters differ from rank 0's, the same on
    all."""
    everyone = [torch.empty_like(mine.digests) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine.digests)
    differs = (torch.stack(everyone) != everyone[0]).any(dim=2).any(dim=0)
    return int(differs.nonzero()[0]) + 1 if bool(differs.any()) else None


def _from_all(mine: T) -> list[T]:
    """Return every rank's value, in rank order."""
    found: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return [value for value in found if value is not None]
