"""One rank's memory over a real step: what the ledger of a simulation says, of tensors that hold data."""

import gc
from pathlib import Path

from zbench.estimate.ledger import AllocationLedger
from zbench.estimate.reading import reading
from zbench.estimate.stepping import Surroundings, watched_step
from zbench.measure.memory import allocator_meter
from zbench.measure.shim import SHIM
from zbench.spec.trial import TrialSpec
from zbench.worker import process
from zbench.worker.job import RankJob, write_json
from zbench.workloads import build_workload


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
