"""One process of a SLURM job: its place among the ranks, where they meet, and the worker that it calls."""

import importlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.errors import ZbenchError
from zbench.worker.job import RankJob, ReferenceJob, call

_RESTARTS = "SLURM_RESTART_COUNT"
_RANK_GRACE_SECONDS = 2.0
_MEETING_SECONDS = 300.0
_POLL_SECONDS = 0.2


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
    home.mkdir(exist_ok=True)
    return home


def _placed(job: RankJob | ReferenceJob, home: Path, place: Any) -> RankJob | ReferenceJob:
    """Return the job of this process: its place among the ranks, and where they meet."""
    progress = str(home / "progress.jsonl") if job.progress_path else None
    if isinstance(job, ReferenceJob):
        return replace(job, errors=str(home / "result.json"), progress_path=progress)
    host = None
    if place.global_rank == 0:
        host = "127.0.0.1" if place.num_nodes == 1 else address_of(place.hostnames[0])
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


def address_of(node: str) -> str:
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


def call_rank(
    target: str, modules: Sequence[str], job: Callable[[], object], error: tuple[str, int | str]
) -> int:
    """Import what a worker needs and call `target`, as `zbench.worker.job.call` does; return its exit status.

    After a failure it waits a while: whatever started this rank then ends the others, which may know more of
    the cause.
    """

    def ready() -> object:
        for module in modules:  # in this order: the memory counter must be there before torch
            importlib.import_module(module)
        return job()

    code = call(target, ready, error)
    if code:
        time.sleep(_RANK_GRACE_SECONDS)
    return code


def meeting_point(file: Path, host: str | None) -> str:
    """Return `host:port` where all meet: who gives a host takes a free port there, and tells by `file`.

    ZbenchError where nobody says so.
    """
    if host is not None:
        draft = file.with_suffix(".tmp")
        with socket.create_server(("127.0.0.1" if host == "127.0.0.1" else "", 0)) as probe:
            draft.write_text(f"{host}:{probe.getsockname()[1]}")
        draft.replace(file)
    deadline = time.monotonic() + _MEETING_SECONDS
    while time.monotonic() < deadline:
        os.listdir(file.parent)  # a network file system looks again
        if file.exists():
            return file.read_text()
        time.sleep(_POLL_SECONDS)
    raise ZbenchError(
        f"rank 0 has not written {file} within {_MEETING_SECONDS:.0f} s; is the results directory on a file"
        " system that all nodes share?"
    )
