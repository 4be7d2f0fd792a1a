"""One host's part in a trial over several hosts: `python -m zbench.launch.host_agent`, started by another.

It speaks lines of JSON. First it says its free port; it is told what to run, runs torchrun and says its
exit status. Meanwhile both sides send an empty line every second. Where nothing comes for some seconds, or
standard input ends, the other side is gone: the agent then kills everything that it started. It imports
little, so that it answers at once. Under torchrun, `python -m zbench.launch.host_agent JOB.json` is a rank.
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
from pathlib import Path
from typing import Any

import psutil

from zbench.launch.reaper import become_subreaper, end_children

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 20.0
"""After so long without a sign the other side counts as gone."""

LOST_STATUS = 75
_PEER_GRACE_SECONDS = 2.0


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

    @property
    def is_gone(self) -> bool:
        return self._ended or time.monotonic() - self._last > SILENCE_SECONDS


def main() -> int:
    """Run what this host is told to; return torchrun's exit status."""
    become_subreaper()
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(LOST_STATUS))
    running: subprocess.Popen[bytes] | None = None
    try:
        _say({"port": free_port()})
        order = _first_order()
        other = _OtherSide()
        threading.Thread(target=other.listen, daemon=True).start()
        running = _start(order)
        while running.poll() is None and not other.is_gone:
            _say()
            time.sleep(BEAT_SECONDS / 2)
        if running.returncode is None:
            return LOST_STATUS
        _say({"code": running.returncode})
        return running.returncode
    except BrokenPipeError:
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


def way_to(host: str) -> tuple[str, str | None]:
    """Return this host's own address on its way to another, and the interface that has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        address: str = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return address, name
    return address, None


def free_port(address: str = "") -> int:
    """Return a TCP port of `address` (this host's name for itself; "": all) that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start torchrun as the order says: `torchrun` and `worker` are its arguments, `meet` is its host."""
    address, interface = way_to(order["meet"])
    environment = {**os.environ, **order["environment"]}
    if interface is not None:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        environment.setdefault("NCCL_SOCKET_IFNAME", interface)
    words = [sys.executable, "-m", "torch.distributed.run", "--local-addr", address, *order["torchrun"]]
    with open(order["log"], "ab") as log:
        return subprocess.Popen(
            [*words, *order["worker"]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=order["directory"],
            env=environment,
        )


def _first_order() -> dict[str, Any]:
    """Return the order; empty lines before it are signs of life."""
    for line in sys.stdin:
        if line.strip():
            order: dict[str, Any] = json.loads(line)
            return order
    raise SystemExit(LOST_STATUS)


def _say(message: dict[str, Any] | None = None) -> None:
    sys.stdout.write((json.dumps(message) if message is not None else "") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    status = run_rank(sys.argv[1]) if len(sys.argv) > 1 else main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of torch's process groups can abort a process that unloads around them
