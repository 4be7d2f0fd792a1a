"""One host's part in a trial over several hosts: `python -m zbench.launch.host_agent JOB.json NUMBER`.

It runs torchrun as the file says; its exit status says how that ended. Where standard input ends, the other
side is gone: the agent then kills everything that it started. Under torchrun,
`python -m zbench.launch.host_agent JOB.json` is a rank.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from zbench.errors import ZbenchError
from zbench.launch.reaper import become_subreaper, end_children
from zbench.worker.job import RankJob, call

TORCHRUN_FAILED = 76
"""Exit status of an agent whose torchrun failed; 0 where it did not, anything else where the host is lost."""

_LOST_STATUS = 75
_PEER_GRACE_SECONDS = 2.0
_MEETING_SECONDS = 300.0
_POLL_SECONDS = 0.1


def main(job: Path, number: int) -> int:
    """Run torchrun on this host, the one of this number; return the agent's exit status."""
    become_subreaper()
    for ending in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(ending, _end)
    threading.Thread(target=_end_with_input, daemon=True).start()
    code = _start(job, number).wait()
    end_children()
    return TORCHRUN_FAILED if code else 0


def _end(*_: object) -> None:
    """End this process and everything that it started."""
    end_children()
    os._exit(_LOST_STATUS)


def _end_with_input() -> None:
    """End this process when standard input ends: the other side is gone."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def run_rank(path: str) -> int:
    """Run this process's rank of the job at `path`, under torchrun; return its exit status."""
    order = json.loads(Path(path).read_text())
    place = {name.lower(): int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    place["local_world_size"] = int(os.environ["LOCAL_WORLD_SIZE"])
    job = RankJob(**{**order["job"], **place, "init_method": "env://"})
    return call_rank(order["target"], order["modules"], lambda: job, (job.result_path, job.rank))


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
        time.sleep(_PEER_GRACE_SECONDS)
    return code


def meeting_point(file: Path, host: str | None) -> str:
    """Return `host:port` where all meet: who gives a host takes a free port there, and tells by `file`.

    ZbenchError where nobody says so.
    """
    if host is not None:
        draft = file.with_suffix(".tmp")
        draft.write_text(f"{host}:{free_port('127.0.0.1' if host == '127.0.0.1' else '')}")
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


def free_port(address: str) -> int:
    """Return a TCP port of `address` (this host's name for itself; "": all) that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def way_to(host: str) -> tuple[str, str | None]:
    """Return this host's own address on its way to another, and the interface that has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        address: str = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return address, name
    return address, None


def _start(job: Path, number: int) -> subprocess.Popen[bytes]:
    order = json.loads(job.read_text())
    place = meeting_point(job.with_name("meeting-point"), None if number else order["meet"])
    address, interface = way_to(order["meet"])
    environment = {**os.environ, **order["environment"]}
    if interface is not None:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        environment.setdefault("NCCL_SOCKET_IFNAME", interface)
    hosts, ranks = order["hosts"], order["job"]["world_size"]
    words = [sys.executable, "-m", "torch.distributed.run", "--local-addr", address]
    words += ["--nnodes", str(hosts), "--nproc-per-node", str(ranks // hosts)]
    words += ["--max-restarts", "0", "--rdzv-backend", "c10d", "--rdzv-id", job.parent.name]
    words += ["--rdzv-endpoint", place, "--rdzv-conf", f"is_host={int(number == 0)}"]
    with job.with_name(f"host{number}.log").open("ab") as log:
        return subprocess.Popen(
            [*words, "-m", "zbench.launch.host_agent", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=order["directory"],
            env=environment,
        )


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else run_rank(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of torch's process groups can abort a process that unloads around them
