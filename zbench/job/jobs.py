"""The job of a worker process, as its launcher writes it. No torch.

If there is no trajectory with the trial's key yet, one process runs `zbench.worker.rank.run_reference(job)`.
Then the launcher starts one process per rank, which calls `zbench.worker.rank.run_rank(job)`.
"""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zbench.spec.peers import begins_rounded
from zbench.spec.trial import NOT_IDENTITY, TrialSpec, accumulation

_CHANGES_NO_BIT = {
    "engine", "engine_python", "ds_config", "zero_stage", "shard_group_size", "leaf_modules", "overlap_comm",
    "offload_optimizer", "offload_param", "offload_schedule", "offload_ratio", "optimizer_threads",
    "rollback", "reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "prefetch_bucket_size",
    "param_persistence_threshold", "compile", "reduction", "build",
}  # fmt: skip
_IN_OTHER_FIELDS = {  # of `reference_key`: accumulation and loss_scale
    "gradient_accumulation_steps", "accumulation_mode", "reduce_at",
    "initial_loss_scale", "loss_scale_window",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankJob:
    """One rank of one repeat of one trial.

    trial: the JSON values of a TrialSpec. init_method: a rendezvous URL of torch.distributed (`file:///path`
    that does not exist yet, or `tcp://host:port`). base_dir: directory of the sweep's relative paths.
    result_path: the JSON that rank 0 writes, atomically, when the trial succeeds. reference_path: the
    trajectory to compare with; None leaves the verdict `unchecked`. progress_path: a file or FIFO that rank 0
    appends a JSON line to after each step, `{"phase": "warmup" | "timed" | "reference", "step": n,
    "steps": m, "seconds": s, "cpu": c}`; n counts from 1 within its phase, and c is rank 0's CPU
    time so far. trace: the path, without suffix, of the
    trace files of a step; None for no trace. local_rank, local_world_size: the rank and the number of ranks
    on this machine, if there are several machines. turns: the socket where every rank asks for its turns,
    if the trial takes turns with others. base_row_path: the reference of the row that this trial is compared
    with, too.
    """

    trial: dict[str, Any]
    rank: int
    world_size: int
    init_method: str
    run_dir: str
    base_dir: str
    result_path: str
    reference_path: str | None = None
    progress_path: str | None = None
    repeat: int = 0
    trace: str | None = None
    local_rank: int = 0
    local_world_size: int | None = None
    turns: str | None = None
    base_row_path: str | None = None

    @property
    def ranks_here(self) -> int:
        """How many ranks this machine has."""
        return self.local_world_size or self.world_size


@dataclass(frozen=True, slots=True)
class ReferenceJob:
    """Compute the reference trajectory of a trial and save it, atomically, at `reference_path`.

    result_path: the error file is named after it, as for a rank.
    """

    trial: dict[str, Any]
    run_dir: str
    base_dir: str
    result_path: str
    reference_path: str
    progress_path: str | None = None


def threads_per_rank(trial: TrialSpec, local_world_size: int | None = None, cpus: int = 0) -> int:
    """Return the compute threads of one rank: as the trial says, or an equal share of the usable cores.

    The reference uses the same number, because the number of threads can change bits. cpus: the number of
    usable CPUs, if it differs from this machine's.
    """
    if trial.run.threads_per_rank != "auto":
        return trial.run.threads_per_rank
    local = local_world_size or max(1, trial.run.world_size // trial.run.nodes)
    return max(1, (cpus or len(os.sched_getaffinity(0))) // local)


def reference_key(trial: TrialSpec) -> str:
    """Return 16 hex digits that are equal exactly where two trials have the same reference trajectory.

    It covers the workload, world size, seed, number of steps, order of summation and every key of the engine,
    except the keys listed as changing no bit. So a new key that is not listed costs an additional reference,
    and never gives a wrong verdict.
    """
    if trial.workload.command is not None:
        base = trial.held_against().config()
        base["run"] = {key: value for key, value in base["run"].items() if key not in NOT_IDENTITY}
        return hashlib.sha256(json.dumps(base, sort_keys=True).encode()).hexdigest()[:16]
    engine = trial.engine
    identity: dict[str, Any] = {
        "workload": trial.workload.model_dump(mode="json"),
        "run": trial.run.model_dump(include={"world_size", "device", "seed", "threads_per_rank"}),
        "steps": trial.run.warmup_steps + trial.run.steps,
        "engine": engine.model_dump(mode="json", exclude=_CHANGES_NO_BIT | _IN_OTHER_FIELDS),
        "loss_scale": (engine.initial_loss_scale, engine.loss_scale_window)
        if engine.dtype == "float16"
        else None,
        "accumulation": dataclasses.asdict(accumulation(engine, trial.workload)),
        "truth": trial.verify.mode == "full",
        "begins_rounded": begins_rounded(engine),
        "added_within": _added_within(trial),
    }
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _added_within(trial: TrialSpec) -> int | None:
    """Return the ranks whose gradients are added first, if this order is not that of all ranks."""
    size = trial.engine.shard_group_size
    return size if size not in (1, trial.run.world_size) else None


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the whole file or none."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps(value))
    draft.replace(path)
