"""What runs inside a SLURM job: one process per rank finds its place and calls the worker.

SLURM may run a job more than once: after `scontrol requeue`, a preemption or the loss of a node it starts
again under the same number. Each start has a directory of its own, so nothing of a start that was ended, or
goes on unnoticed on a node that was cut off, is read as the result of another.
"""

import importlib
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.errors import ZbenchError
from zbench.launch.host_agent import call_rank, meeting_point
from zbench.worker.job import RankJob, ReferenceJob

_RESTARTS = "SLURM_RESTART_COUNT"


def run_job(target: str, modules: Sequence[str], job: RankJob | ReferenceJob) -> None:
    """Be one process of a job: import what the worker needs, then call it; SystemExit where it fails."""
    place = importlib.import_module("submitit").JobEnvironment()
    home = start_directory(Path(job.result_path if isinstance(job, RankJob) else job.error_stem), place)
    error = (str(home / "result.json"), place.global_rank if isinstance(job, RankJob) else "reference")
    code = call_rank(target, modules, lambda: _placed(job, home, place), error)
    if code:
        raise SystemExit(code)


def start_directory(result: Path, place: Any) -> Path:
    """Return the directory of this start of the job, made beside `result`."""
    home = result.parent / f"{place.job_id}-{os.environ.get(_RESTARTS, '0')}"
    home.mkdir(parents=True, exist_ok=True)
    return home


def last_start(work: Path, job_id: str) -> Path:
    """Return the directory of the job's last start; one that does not exist if it has not started."""
    starts = [path for path in work.glob(f"{job_id}-*") if path.name.rpartition("-")[2].isdigit()]
    return max(starts, key=lambda path: int(path.name.rpartition("-")[2]), default=work / f"{job_id}-0")


def _placed(job: RankJob | ReferenceJob, home: Path, place: Any) -> RankJob | ReferenceJob:
    """Return the job of this process: its place among the ranks, and where they meet."""
    progress = str(home / "progress.jsonl") if job.progress_path else None
    if isinstance(job, ReferenceJob):
        return replace(job, errors=str(home / "result.json"), progress_path=progress)
    host = None
    if place.global_rank == 0:
        host = "127.0.0.1" if place.num_nodes == 1 else _address(place.hostnames[0])
    return replace(
        job,
        result_path=str(home / "result.json"),
        progress_path=progress,
        rank=place.global_rank,
        world_size=place.num_tasks,
        init_method=f"tcp://{meeting_point(home / 'meeting-point', host)}",
        local_rank=place.local_rank,
        local_world_size=max(1, place.num_tasks // max(1, place.num_nodes)),
    )


def _address(node: str) -> str:
    """Return a name or address of a node that other nodes can connect to; ZbenchError where there is none."""
    candidates = [node, os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")]  # submitit launches from this node
    for candidate in filter(None, candidates):
        try:
            socket.getaddrinfo(candidate, None)
        except OSError:
            continue
        return candidate
    raise ZbenchError(
        f"the name of the job's first node, {node}, does not resolve, and SLURM knows no address of it;"
        " enter it in DNS or /etc/hosts"
    )
