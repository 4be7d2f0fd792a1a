"""What a simulated step's ledger says, as an Estimate."""

import dataclasses
import gc
import time
from collections import Counter
from pathlib import Path

from zbench.estimate.ledger import Allocation, AllocationLedger
from zbench.estimate.problems import check_simulated
from zbench.estimate.result import Estimate, HeldAllocation
from zbench.estimate.simulate import simulate
from zbench.estimate.stepping import Step, Surroundings, watched_step
from zbench.measure.memory import allocator_meter
from zbench.measure.shim import SHIM
from zbench.spec.trial import TrialSpec
from zbench.worker import process
from zbench.worker.job import RankJob, write_json
from zbench.workloads import build_workload

_NAMED = 20  # allocations at the peak
_POINTS = 400  # of a timeline


def estimate(trial: TrialSpec, base_dir: Path, *, timeline: bool = False) -> Estimate:
    """Return what one rank of a trial needs; UsageError for what cannot be simulated."""
    check_simulated(trial)
    began = time.perf_counter()
    step = simulate(trial, base_dir)
    return reading(step, timeline=timeline, seconds=time.perf_counter() - began)


def reading(step: Step, *, timeline: bool, seconds: float) -> Estimate:
    """Return what a step's ledger says. seconds: what it took to make it."""
    ledger = step.ledger
    moment = ledger.peak_moment[False]
    return Estimate(
        peak_device_bytes=ledger.peak[False],
        peak_host_bytes=ledger.peak[True],
        build_device_bytes=step.build_device_bytes,
        device=ledger.by_category(moment, host=False),
        host=ledger.by_category(ledger.peak_moment[True], host=True),
        phase=_phase(step, moment),
        alive=_alive(step, moment),
        traffic={kind: dataclasses.asdict(traffic) for kind, traffic in step.traffic.items()},
        flops=step.flops,
        work=step.work,
        seconds=seconds,
        timeline=_timeline(step) if timeline else [],
    )


def _phase(step: Step, moment: int) -> str:
    return next((a.phase for a in reversed(step.ledger.allocations) if a.born <= moment), "build")


def _alive(step: Step, moment: int) -> list[HeldAllocation]:
    """Return the largest allocations of one moment; those of one place, shape and dtype together."""
    found: Counter[tuple[str, str, tuple[int, ...], str]] = Counter()
    total: Counter[tuple[str, str, tuple[int, ...], str]] = Counter()
    for a in step.ledger.allocations:
        if a.nbytes and not a.host and a.alive(moment):
            key = (step.ledger.category(a), _short(a.where), a.shape, str(a.dtype).removeprefix("torch."))
            found[key] += 1
            total[key] += a.nbytes
    return [
        HeldAllocation(nbytes, found[key], category, where, shape, dtype)
        for key, nbytes in total.most_common(_NAMED)
        for category, where, shape, dtype in [key]
    ]


def _short(where: str) -> str:
    """Return file and line with the last folders only."""
    return "/".join(where.split("/")[-3:])


def _timeline(step: Step) -> list[tuple[str, dict[str, int]]]:
    """Return the device's memory over the step: of each stretch the fullest moment."""
    ledger = step.ledger
    changes: list[tuple[int, int, Allocation]] = []
    for a in ledger.allocations:
        if not a.host and a.died > step.begin:
            changes.append((max(a.born, step.begin), a.nbytes, a))
            if a.died <= step.end:
                changes.append((a.died, -a.nbytes, a))
    changes.sort(key=lambda change: change[0])
    held: Counter[str] = Counter()
    stretch = max(1, (step.end - step.begin) // _POINTS)
    points: list[tuple[str, dict[str, int]]] = []
    best, most, until, phase = dict[str, int](), -1, step.begin + stretch, "batch"
    for moment, nbytes, a in changes:
        if moment > until:
            points.append((phase, best))
            most, until = -1, moment + stretch
        held[ledger.category(a)] += nbytes
        if nbytes > 0 and moment > step.begin:
            phase = a.phase
        if held.total() > most:
            best, most = dict(held), held.total()
    return [*points, (phase, best)]


def measure(job: RankJob) -> None:
    """Train on one rank; rank 0 writes the step as an Estimate, and the peak that torch's allocator counted
    (null where it cannot be read).
    """
    trial = TrialSpec.model_validate(job.trial)
    process.start(job, trial)
    base_dir = Path(job.base_dir)
    workload = build_workload(
        trial.workload, seed=trial.run.seed, world_size=trial.run.world_size, base_dir=base_dir
    )
    gc.collect()
    meter = None if SHIM is None else allocator_meter(SHIM)
    ledger = AllocationLedger()
    around = Surroundings() if meter is None else Surroundings(begun=meter.reset)
    with ledger.watching():
        step = watched_step(trial, workload, ledger, base_dir, around)
        peak = meter.peak() if meter else None
    if job.rank == 0:
        found = reading(step, timeline=True, seconds=0.0).to_json()
        write_json(Path(job.result_path), {"estimate": found, "allocator_peak_bytes": peak})
    process.stop()
