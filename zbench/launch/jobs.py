"""From a TrialSpec to the processes that run it: a job a rank, with cores, threads, log and error file."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.launch import affinity
from zbench.launch.messages import RankStart
from zbench.spec.trial import TrialSpec
from zbench.worker.job import RankJob, ReferenceJob, threads_per_rank


def resolved(trial: TrialSpec) -> dict[str, Any]:
    """Return the trial as JSON values with its thread count fixed: a pinned rank cannot see all cores."""
    threads = threads_per_rank(trial)
    run = trial.run.model_copy(update={"threads_per_rank": threads})
    return trial.model_copy(update={"run": run}).model_dump(mode="json")


def rank_starts(job: RankJob, logs: Path, cores: Sequence[Sequence[int]]) -> list[RankStart]:
    """Return how each rank of a trial begins; `job` is rank 0's. cores: logical CPUs of each usable core."""
    cpus = affinity.assign(job.world_size, cores)
    return [
        RankStart(
            job=pickle.dumps(replace(job, rank=rank)),
            log=str(logs / f"rank{rank}.log"),
            error=(job.result_path, rank),
            cpus=cpus[rank],
        )
        for rank in range(job.world_size)
    ]


def reference_start(job: ReferenceJob, logs: Path) -> RankStart:
    """Return how the one process begins that computes a reference; it may use all cores."""
    return RankStart(pickle.dumps(job), str(logs / "rank0.log"), (job.reference_path, "reference"))
