"""The two entry points of a worker process: a rank of a trial, and the reference trajectory."""

import dataclasses
import shlex
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import StepInfo
from zbench.job.jobs import RankJob, ReferenceJob, threads_per_rank, write_json
from zbench.measure.ceilings import utilization
from zbench.measure.clock import PHASES
from zbench.measure.counts import count_operators
from zbench.measure.memory import choose_meter, largest
from zbench.record.environment import machine_name
from zbench.record.inputs import inputs
from zbench.record.record import Correctness, Timing
from zbench.spec import shapes
from zbench.spec.base_rows import rows_apart
from zbench.spec.engine import EngineSpec
from zbench.spec.trial import TrialSpec, accumulation
from zbench.spec.workload import WorkloadSpec
from zbench.verify.micro_batches import exact_difference, told_of_micro_batches
from zbench.verify.plain_training import PlainTask, make_reference
from zbench.verify.sums import prepare
from zbench.verify.trajectory import load_determinism, load_reference, save_reference
from zbench.verify.verdict import Judgement
from zbench.worker import process
from zbench.worker.base_runs import run_base
from zbench.worker.determinism import Determinism, steps_on
from zbench.worker.loop import Fence, Meters, Samples, Trainer, run_steps
from zbench.worker.observer import Observer
from zbench.worker.process import Progress
from zbench.worker.script import run_script
from zbench.worker.state import from_all
from zbench.worker.trace import Subject, look_inside
from zbench.workloads import Workload, build_workload
from zbench.workloads.data import DatasetBatches
from zbench.workloads.workload import Data


def run_rank(job: RankJob) -> None:
    """Run one rank of a trial to its end; rank 0 writes the result. `calling.call` reports errors."""
    trial = TrialSpec.model_validate(job.trial)
    if trial.workload.command is None:
        result = run_trainer(job, trial)
    else:
        result = {"inputs": inputs_of(trial, Path(job.base_dir))} | run_script(job, trial)
    if job.rank == 0:
        ended = {"outcome": "ok", "error": None, "machine": machine_name()}
        write_json(Path(job.result_path), ended | result)
    process.stop()


def run_reference(job: ReferenceJob) -> None:
    """Compute and save the reference trajectory of a trial; failures as in `run_rank`."""
    trial = TrialSpec.model_validate(job.trial)
    if trial.workload.command is not None:
        run_base(job, trial)
        return
    process.set_threads(threads_per_rank(trial))
    device = process.device_of(trial.run.device)
    algorithms = Determinism(steps_on(device), [])
    trial = algorithms.lengthened(trial)
    workload = trial_workload(trial, job.base_dir)
    read = inputs_of(trial, Path(job.base_dir), workload.data)
    task = PlainTask(
        workload,
        trial.engine,
        accumulation(trial.engine, trial.workload),
        trial.run.warmup_steps + trial.run.steps + 1,  # the last one is not timed
        device,
    )
    full = trial.verify.mode == "full"
    with Progress(job.progress_path) as progress:

        def on_step(done: int, total: int) -> None:
            algorithms.begin(done)
            progress.step("reference", done, total)

        algorithms.begin(0)
        reference = algorithms.retried(lambda: make_reference(task, truth=full, on_step=on_step))
    steps = algorithms.steps
    warnings = [*reference.warnings, *algorithms.warnings]
    reference = dataclasses.replace(reference, inputs=read, deterministic_steps=steps, warnings=warnings)
    save_reference(reference, Path(job.reference_path))


def trial_workload(trial: TrialSpec, base_dir: str) -> Workload:
    """Return the workload of a trial: the same for every rank and for the reference."""
    run = trial.run
    return build_workload(trial.workload, seed=run.seed, world_size=run.world_size, base_dir=Path(base_dir))


def run_trainer(job: RankJob, trial: TrialSpec) -> dict[str, Any]:
    """Run this rank's part of a trial; return the result in the record's fields, complete on rank 0."""
    device = process.start(job, trial)
    prepare(device)
    algorithms = Determinism(*load_determinism(Path(job.reference_path)) if job.reference_path else (0, []))
    longer = algorithms.lengthened(trial)
    return algorithms.retried(lambda: _train(job, longer, device, algorithms))


def _train(job: RankJob, trial: TrialSpec, device: torch.device, algorithms: Determinism) -> dict[str, Any]:
    workload = trial_workload(trial, job.base_dir)
    base_dir = Path(job.base_dir)
    limit = process.MemoryLimit(trial.run.memory_limit)
    meter, warning = choose_meter(device)
    meters = Meters.on(device, meter)
    instruments = Instruments(wrap_collectives=meters.traffic.count, memory_limit=limit.on(device))
    trainer = Trainer(trial, workload, base_dir, instruments, device=device, clock=meters.clock)
    read = inputs_of(trial, base_dir, workload.data)
    with limit.lifted():
        observer = _observer(trainer, trial, job.reference_path)
    warmup, timed, every = trial.run.warmup_steps, trial.run.steps, trial.run.evaluate_every

    def one_more_step() -> tuple[list[Tensor], StepInfo]:
        return trainer.step(trainer.batches(warmup + timed))

    with Progress(job.progress_path if job.rank == 0 else None) as progress:

        def after_step(step: int, seconds: float, losses: list[float], info: StepInfo) -> None:
            if every and (step + 1) % every == 0:
                trainer.evaluate(step)
            if observer is not None:
                with limit.lifted():
                    observer.after_step(losses, info)
            algorithms.begin(step + 1)
            progress.training_step(trial.run, step + 1, seconds)

        fence = Fence(device, job)
        algorithms.begin(0)
        samples = run_steps(trainer, meters, warmup=warmup, timed=timed, fence=fence, after_step=after_step)
    memory = largest(from_all(meters.memory.summary(trainer.engine.memory_by_category())))
    with limit.lifted():
        if observer is not None:
            losses, info = one_more_step()
            observer.after_step([float(loss) for loss in losses], info)
        judgement = _judged(job, trial, observer, trainer.model, workload.data, read)
        counts = meters.counts.smallest
        if _can_count_operators(trial.engine):
            counts |= count_operators(one_more_step, device)
        if job.rank != 0 and job.trace is None:  # to count a model's FLOPs takes up to a second
            trainer.engine.close()
            return {}
        timing = summarise(samples, workload, trainer.backwards)
        if job.trace is not None:
            subject = Subject(one_more_step, meters.clock, meter, trainer.engine, device)
            look_inside(Path(job.trace), subject, timing, limit=trial.run.memory_limit)
    trainer.engine.close()
    gpus, slower = process.gpus_of(job, trial, device)
    mfu = utilization(timing.tflops, device, trial.engine.dtype, gpus)
    return {
        "timing": dataclasses.asdict(timing) | {"mfu": mfu},
        "memory": dataclasses.asdict(memory),
        "traffic": {kind: dataclasses.asdict(traffic) for kind, traffic in samples.traffic.items()},
        "counts": counts,
        "correctness": dataclasses.asdict(judgement.correctness) | {"deterministic_steps": algorithms.steps},
        "warnings": [*filter(None, [warning]), *slower, *algorithms.warnings, *judgement.warnings],
        "inputs": read,
        "losses": observer.curve if observer is not None else [],
        "heat": {"name": "", "turn_seconds": samples.seconds_by_turn()} if job.turns is not None else None,
    }


def _observer(trainer: Trainer, trial: TrialSpec, path: str | None) -> Observer | None:
    """Return what holds each step against the reference at `path`; None where nothing is verified."""
    return Observer(trainer.engine, trainer.model, trial, path) if path else None


def _judged(
    job: RankJob,
    trial: TrialSpec,
    observer: Observer | None,
    model: nn.Module,
    data: Data,
    read: Mapping[str, str],
) -> Judgement:
    """Return the verdict, and whether a base row with other micro-batches trains the same step.

    read: digests of the user's files that the trial read.
    """
    if observer is None:
        return Judgement(Correctness("unchecked"))
    judgement = observer.verdict(read)
    if job.base_row_path is None or job.rank != 0:
        return judgement
    share = exact_difference(observer.reference, load_reference(Path(job.base_row_path)))
    return told_of_micro_batches(judgement, rows_apart(trial), share, model, data)


def _can_count_operators(spec: EngineSpec) -> bool:
    """Whether a step is the same under the dispatch mode that counts its operators.

    A compiled model runs eagerly there, and FSDP2 and DeepSpeed replace tensors by their own.
    """
    return spec.compile == "off" and spec.engine not in ("fsdp2", "deepspeed")


def summarise(samples: Samples, workload: Workload, micro_batches: int) -> Timing:
    """Return rank 0's step times and what follows from them.

    Rates are work over all timed steps. Tokens, samples and operations are those of all ranks together;
    tokens are the mean over the timed steps.
    Operations are the model's, without recomputation (`Workload.flops_per_micro_batch`), and unknown where
    steps differ in size. Each phase is its median over the timed steps.
    """
    mean = statistics.fmean(samples.step_seconds)
    rate = workload.world_size * micro_batches / mean
    flops = workload.flops_per_micro_batch if len(set(samples.sizes)) == 1 else None
    return Timing(
        step_seconds=samples.step_seconds,
        median_step_s=statistics.median(samples.step_seconds),
        tokens_per_s=statistics.fmean(samples.sizes) / mean if workload.count_tokens else None,
        samples_per_s=workload.samples_per_micro_batch * rate,
        tflops=None if flops is None else flops * rate / 1e12,
        phases={name: statistics.median(phases[name] for phases in samples.phases) for name in PHASES},
        cpu_seconds=samples.cpu_seconds,
    )


def inputs_of(trial: TrialSpec, base_dir: Path, data: Data | None = None) -> dict[str, str]:
    """Return name -> digest of every file, and the fingerprint of a dataset. See `record.inputs.inputs`.

    Call it when the model has been made, and before a step: what is edited later was not read.
    """
    digests = inputs(_named(trial.workload, base_dir), base_dir)
    if isinstance(data, DatasetBatches):
        digests |= {str(trial.workload.data.dataset): data.fingerprint}
    return digests


def _named(spec: WorkloadSpec, base_dir: Path) -> Iterator[Path]:
    if spec.data.text is not None:
        yield base_dir / spec.data.text
    if spec.model.startswith(shapes.PREFIX):
        config = shapes.config_file(spec.model.removeprefix(shapes.PREFIX), base_dir)
        yield from [] if config is None else [config]
    for word in [] if spec.command is None else shlex.split(spec.command):
        if (base_dir / word).is_file():
            yield base_dir / word
