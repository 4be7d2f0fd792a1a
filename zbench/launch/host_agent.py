"""One host's part in a trial over several hosts: `python -m zbench.launch.host_agent JOB.json NUMBER`.

It runs torchrun as the file says, and says its exit status. Meanwhile both sides send an empty line every
second. Where nothing comes for some seconds, or standard input ends, the other side is gone: the agent then
kills everything that it started. It imports little, so that it answers at once. Under torchrun,
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
from collections.abc import Callable
from pathlib import Path

import psutil

from zbench.errors import ZbenchError
from zbench.launch.reaper import become_subreaper, end_children

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 20.0
"""After so long without a sign the other side counts as gone."""

ENDED = "torchrun ended: "
LOST_STATUS = 75
_PEER_GRACE_SECONDS = 2.0
_MEETING_SECONDS = 300.0
_POLL_SECONDS = 0.1


class _OtherSide:
    """Whether the side that started this agent is still there."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._ended = False

    def listen(self) -> None:
        """Read lines to the end of standard input."""
        for _ in sys.stdin:
            self._last = time.monotonic()
        self._ended = True

    def beat(self) -> None:
        """Say that this side is there; SystemExit where the other one is not."""
        print(flush=True)
        if self._ended or time.monotonic() - self._last > SILENCE_SECONDS:
            raise SystemExit(LOST_STATUS)


def main(job: Path, number: int) -> int:
    """Run torchrun on this host, the one of this number; return its exit status."""
    become_subreaper()
    for signalled in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(signalled, lambda *_: sys.exit(LOST_STATUS))
    running: subprocess.Popen[bytes] | None = None
    other = _OtherSide()
    threading.Thread(target=other.listen, daemon=True).start()
    try:
        other.beat()
        running = _start(job, number, other)
        while running.poll() is None:
            other.beat()
            time.sleep(BEAT_SECONDS / 2)
        print(f"{ENDED}{running.returncode}", flush=True)
        return running.returncode
    except (BrokenPipeError, SystemExit):
        return LOST_STATUS
    finally:
        if running is not None and running.returncode is None:
            running.kill()
            running.returncode = LOST_STATUS  # reaped below, with all that it leaves
        end_children()


def run_rank(path: str) -> int:
    """Run this process's rank of the job at `path`, under torchrun; return its exit status."""
    from zbench.worker.job import RankJob, call

    order = json.loads(Path(path).read_text())
    place = {name.lower(): int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    place["local_world_size"] = int(os.environ["LOCAL_WORLD_SIZE"])

    def job() -> RankJob:
        for module in order["modules"]:  # in this order: the memory counter must be there before torch
            importlib.import_module(module)
        return RankJob(**{**order["job"], **place, "init_method": "env://"})

    code = call(order["target"], job, (str(order["job"]["result_path"]), place["rank"]))
    if code:
        time.sleep(_PEER_GRACE_SECONDS)  # torchrun now ends the other ranks, which may know more of the cause
    return code


def meeting_point(file: Path, host: str | None, wait: Callable[[], object]) -> str:
    """Return `host:port` where all meet: who gives a host takes a free port there, and tells by `file`.

    wait: called while it is not known. ZbenchError where nobody says so.
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
        wait()
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


def _start(job: Path, number: int, other: _OtherSide) -> subprocess.Popen[bytes]:
    order = json.loads(job.read_text())
    place = meeting_point(job.with_name("meeting-point"), None if number else order["meet"], other.beat)
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
