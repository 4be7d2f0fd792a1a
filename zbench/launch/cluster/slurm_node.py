"""The process on each node of a SLURM job: it runs the task in a folder that all nodes share.

`task` is the task; `JOB-START/end-K` is how it ended on the node K, with its files. Each start of a job has
its own folder. An earlier start may still run on a node that lost its connection, and its files must not be
read as those of a later one.
"""

import importlib
import json
import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from zbench.errors import ZbenchError
from zbench.launch.cluster.node import NodeWorker, address_of_node, references_of
from zbench.launch.executor import Batch, Targets, Task

_MEETING_SECONDS = 300.0
_POLL_SECONDS = 0.2


def serve(inbox: Path, base_dir: str, targets: Targets) -> None:
    """Run the task of a folder on this node."""
    place = importlib.import_module("submitit").JobEnvironment()
    home = inbox / f"{place.job_id}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    home.mkdir(exist_ok=True)
    worker = NodeWorker(base_dir, targets, own_address(place))
    rank = place.global_rank
    task, nodes = pickle.loads((inbox / "task").read_bytes())
    point = _meeting_point(home / "meeting", place, nodes, worker)
    began = time.monotonic()
    batch = Batch((task,))
    on_line = partial(_show, home) if rank == 0 else None
    (attempt,), files = worker.run(batch, rank, nodes, point, references_of(batch), on_line)
    attempt = replace(attempt, seconds=time.monotonic() - began)
    write(home / f"end-{rank}", pickle.dumps((attempt, files)))


def _show(home: Path, task: Task, line: dict[str, Any]) -> str | None:
    """Pass a progress line to the command; return the command's reason to end the task, if any."""
    with (home / "progress").open("a") as file:
        file.write(json.dumps(line) + "\n")
    stop = home / "stop"
    return stop.read_text() if stop.exists() else None


def last_start(inbox: Path, job_id: str) -> Path:
    """Return the folder of a job's last start; one that does not exist if it has not started."""
    starts = [path for path in inbox.glob(f"{job_id}-*") if path.name.rpartition("-")[2].isdigit()]
    return max(starts, key=lambda path: int(path.name.rpartition("-")[2]), default=inbox / f"{job_id}-0")


def write(path: Path, data: bytes) -> None:
    """Write a file that others see as a whole."""
    draft = path.with_suffix(".tmp")
    draft.write_bytes(data)
    draft.replace(path)


def all_there(files: Sequence[Path]) -> bool:
    """Whether all files of a folder are there."""
    if files[0].parent.is_dir():
        os.listdir(files[0].parent)  # a network file system looks again
    return all(file.exists() for file in files)


def _meeting_point(file: Path, place: Any, nodes: int, worker: NodeWorker) -> str | None:
    """Return the rendezvous address of several nodes: the first node writes its free port to `file`.

    None for one node. ZbenchError if the file does not appear.
    """
    if nodes == 1:
        return None
    if place.global_rank == 0:
        write(file, worker.meeting_point().encode())
    deadline = time.monotonic() + _MEETING_SECONDS
    while not all_there([file]):
        if time.monotonic() > deadline:
            raise ZbenchError(
                f"the job's first node has not written {file} within {_MEETING_SECONDS:.0f} s; is the results"
                " directory on a file system that all nodes share?"
            )
        time.sleep(_POLL_SECONDS)
    return file.read_text()


def own_address(place: Any) -> str:
    """Return the address at which the job's other nodes reach this one."""
    names = list(place.hostnames)
    number = place.global_rank
    return address_of_node(names[number], [*names[:number], *names[number + 1 :]])
