"""Chooses the executor of a command's trials, and checks that it can start them."""

import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from zbench.errors import UsageError
from zbench.launch.cluster.places import PlacesExecutor
from zbench.launch.cluster.ray_cluster import RayCluster
from zbench.launch.cluster.slurm import SlurmExecutor
from zbench.launch.cluster.slurm_jobs import SlurmOptions, is_in_allocation, require_slurm
from zbench.launch.cluster.slurm_steps import SlurmAllocation, require_nodes
from zbench.launch.events import Notice, OnEvent
from zbench.launch.executor import Executor, Targets
from zbench.launch.process.local import LocalExecutor
from zbench.spec.run import AUTO_RANKS, ranks_here
from zbench.spec.trial import TrialSpec
from zbench.units import format_bytes

RANK_BYTES = 64 << 20
"""Private memory of an idle rank, in addition to what it shares with the server (measured: 40 to 60 MB)."""

MAX_RANKS = 64
"""The most ranks that are started on one host."""

_SPARE_PROCESSES = 64


Backend = SlurmOptions | RayCluster | None
"""Where trials run: in jobs of SLURM, on a Ray cluster, or on this machine."""


def backend_of(slurm: Sequence[str], ray: str | None, tell: Callable[[str], None]) -> Backend:
    """Return the backend that `--slurm` or `--ray` names, whose nodes `run.world_size: auto` counts from now
    on; UsageError if both are given.

    tell: called with a message about nodes that are not used.
    """
    if slurm and ray is not None:
        raise UsageError("--slurm and --ray exclude each other; leave one of them out")
    backend = RayCluster(ray, tell) if ray is not None else SlurmOptions.parse(slurm) if slurm else None
    AUTO_RANKS.set(ranks_here if backend is None else backend.auto_ranks)
    return backend


def make_executor(
    run_dir: Path,
    base_dir: Path,
    backend: Backend,
    *,
    targets: Targets | None = None,
    on_event: OnEvent = lambda _: None,
) -> Executor:
    """Return the executor of this machine, or of a cluster that `require_room` has checked.

    on_event: told which imports of this machine's trial server failed.
    """
    if backend is None:
        return LocalExecutor(run_dir, base_dir, targets=targets, tell=lambda text: on_event(Notice(text)))
    if isinstance(backend, SlurmOptions):
        if is_in_allocation():
            return PlacesExecutor(run_dir, base_dir, SlurmAllocation(), targets=targets)
        return SlurmExecutor(run_dir, base_dir, backend, targets=targets)
    return PlacesExecutor(run_dir, base_dir, backend, targets=targets)


def require_room(trials: Sequence[TrialSpec], base_dir: Path, backend: Backend) -> None:
    """Raise UsageError if the ranks of some trial cannot run on the backend; nothing is written to disk."""
    if isinstance(backend, SlurmOptions) and is_in_allocation():
        require_nodes(trials, backend)
        return
    if isinstance(backend, SlurmOptions) and any(trial.run.order == "turns" for trial in trials):
        raise UsageError(
            "run.order: turns: in SLURM each trial has its nodes to itself, so configurations run in rounds;"
            " leave run.order out"
        )
    if isinstance(backend, RayCluster):
        backend.require(trials, base_dir)
        return
    if backend is not None:
        require_slurm(backend)
    for trial in trials:
        if backend is not None:
            backend.nodes_for(trial)
        elif trial.run.nodes > 1:
            raise UsageError(
                f"run.nodes: {trial.run.nodes}: this machine is one node; start the trials with --ray or"
                " --slurm, or leave run.nodes out"
            )
        else:
            check_world_size(trial.run.world_size)


def check_world_size(world_size: int) -> None:
    """Raise UsageError if this many ranks cannot be started here, saying what limits them."""
    most, limit = max_ranks()
    if world_size > most:
        raise UsageError(
            f"run.world_size: {world_size} ranks cannot be started on this machine: {limit} allow {most}. "
            f"Use a world size of at most {most} (this machine has {os.cpu_count()} cores), span nodes with "
            "--ray or --slurm, or use `zbench estimate`, which starts no ranks"
        )


def max_ranks() -> tuple[int, str]:
    """Return the largest world size that can start, and what limits it."""
    available = psutil.virtual_memory().available
    limits = [
        (MAX_RANKS, "zbench's bounds for one host"),
        (available // RANK_BYTES, f"{format_bytes(available)} of free memory"),
    ]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY:
        limits.append((max(0, soft - _SPARE_PROCESSES), f"{soft} processes (ulimit -u)"))
    return min(limits)
