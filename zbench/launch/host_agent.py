"""One host's part in a trial over several hosts: `python -m zbench.launch.host_agent`, started by another.

It speaks lines of JSON. First it says its free port; it is told what to run, runs torchrun and says its
exit status. Meanwhile both sides send an empty line every second. Where nothing comes for some seconds, or
standard input ends, the other side is gone: the agent then kills everything that it started. It imports
little, so that it answers at once.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import psutil

from zbench.launch.guard import become_subreaper, end_children
from zbench.launch.ports import free_port

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 20.0
"""After so long without a sign the other side counts as gone."""

LOST_STATUS = 75


class _Heard:
    """What the other side said last, and when."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.ended = False

    def listen(self) -> None:
        """Read lines to the end of standard input."""
        for _ in sys.stdin:
            self.last = time.monotonic()
        self.ended = True

    @property
    def is_gone(self) -> bool:
        """Whether the other side is."""
        return self.ended or time.monotonic() - self.last > SILENCE_SECONDS


def main() -> int:
    """Run what this host is told to; return torchrun's exit status."""
    become_subreaper()
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(LOST_STATUS))
    running: subprocess.Popen[bytes] | None = None
    try:
        _say({"port": free_port()})
        order = json.loads(_first_line())
        heard = _Heard()
        threading.Thread(target=heard.listen, daemon=True).start()
        running = _start(order)
        while running.poll() is None and not heard.is_gone:
            _say()
            time.sleep(BEAT_SECONDS / 2)
        code = LOST_STATUS if running.returncode is None else running.returncode
        if running.returncode is not None:
            _say({"code": code})
        return code
    except BrokenPipeError:
        return LOST_STATUS
    finally:
        if running is not None and running.returncode is None:
            running.kill()
            running.returncode = LOST_STATUS  # reaped below, with all that it leaves
        end_children()


def way_to(host: str) -> tuple[str, str | None]:
    """Return this host's own address on its way to another, and the interface that has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        address: str = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return address, name
    return address, None


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


def _first_line() -> str:
    """Return the order; empty lines before it are signs of life."""
    for line in sys.stdin:
        if line.strip():
            return line
    raise SystemExit(LOST_STATUS)


def _say(message: dict[str, Any] | None = None) -> None:
    sys.stdout.write((json.dumps(message) if message is not None else "") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
