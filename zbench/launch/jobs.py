"""What runs in the processes of a trial, and how each of them starts: cores, threads, log and error file."""

import pickle
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zbench.launch import affinity, preload
from zbench.launch.messages import RankStart
from zbench.spec.inputs import BUILT_IN_MODELS
from zbench.spec.trial import TrialSpec
from zbench.worker.job import RankJob, ReferenceJob, threads_per_rank


@dataclass(frozen=True, slots=True)
class Targets:
    """What runs in the processes (`module:function`), and what a server imports before it forks them.

    many: whether one server will fork the processes of many trials.
    """

    rank: str = "zbench.worker.main:run_rank"
    reference: str = "zbench.worker.main:run_reference"
    modules: tuple[str, ...] = (*preload.MODULES, *preload.DYNAMO)
    many: bool = False


DEFAULT_TARGETS = Targets()
_MANY = 12  # repeats, in which huge pages save the time that they take
_DECIDE_OF_DYNAMO = {"engine", "compile", "model", "activation_checkpointing"}


def targets_for(trials: Collection[TrialSpec], varied: Collection[str] = ()) -> Targets:
    """Return the targets of these trials. varied: keys that a search changes in them."""
    if Targets() != DEFAULT_TARGETS:
        return DEFAULT_TARGETS  # another worker's needs are its own
    changed = {key.rpartition(".")[2] for key in varied}
    libraries = preload.libraries_for(
        {trial.workload.model for trial in trials},
        preload.ENGINE_LIBRARIES if "engine" in changed else {trial.engine.engine for trial in trials},
        dynamo=bool(changed & _DECIDE_OF_DYNAMO) or any(map(_needs_dynamo, trials)),
        compiles="compile" in changed or any(trial.engine.compile != "off" for trial in trials),
    )
    many = bool(varied) or sum(trial.run.repeats for trial in trials) >= _MANY
    return replace(DEFAULT_TARGETS, modules=(*preload.MODULES, *libraries), many=many)


def _needs_dynamo(trial: TrialSpec) -> bool:
    """Say whether a trial makes one of torch's optimizers, or checkpoints, or runs code of its user's."""
    workload, engine = trial.workload, trial.engine
    plain = engine.engine == "builtin" and engine.compile == "off" and not workload.activation_checkpointing
    return not plain or workload.model not in BUILT_IN_MODELS


def resolved(trial: TrialSpec) -> dict[str, Any]:
    """Return the trial as JSON values with its thread count fixed: a pinned rank cannot see all cores."""
    threads = threads_per_rank(trial)
    run = trial.run.model_copy(update={"threads_per_rank": threads})
    return trial.model_copy(update={"run": run}).model_dump(mode="json")


def process_starts(
    job: RankJob | ReferenceJob, logs: Path, cores: Sequence[Sequence[int]]
) -> list[RankStart]:
    """Return how each process of a job starts; `job` is rank 0's. A reference may use all cores.

    cores: the logical CPUs of each usable core.
    """
    if isinstance(job, ReferenceJob):
        return [RankStart(pickle.dumps(job), str(logs / "rank0.log"), (job.error_stem, "reference"))]
    if job.trial["workload"].get("command") is not None:  # one process, which starts the user's own launcher
        return [RankStart(pickle.dumps(job), str(logs / "rank0.log"), (job.result_path, 0))]
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
