"""Namespaces of its own for a campaign: files in /dev/shm and sockets are then its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "ZBENCH_TEST_ISOLATED"
_PREPARE = 'mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec "$@"'


def is_isolated() -> bool:
    """Whether this process has namespaces of its own."""
    return os.environ.get(VARIABLE) == "1"


def enter() -> None:
    """Run this program again with its own mounts and network, if this user may; otherwise go on as before."""
    if is_isolated() or shutil.which("ip") is None or shutil.which("unshare") is None:
        return
    command = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", _PREPARE, "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        again = [sys.executable, "-m", "tests.launch.campaign", *sys.argv[1:]]
        os.execvpe(command[0], [*command, *again], os.environ | {VARIABLE: "1"})


def shared() -> frozenset[str]:
    """Return all that processes here share by name: files in /dev/shm, Unix sockets, listening ports.

    Nothing where others share them, too: one could not tell whose they are.
    """
    if not is_isolated():
        return frozenset()
    files = {f"/dev/shm/{path.name}" for path in Path("/dev/shm").iterdir()}
    unix = {f"socket {line.split()[7]}" for line in _lines("unix") if len(line.split()) > 7}
    ports = {
        f"port {line.split()[1]}" for line in [*_lines("tcp"), *_lines("tcp6")] if line.split()[3] == "0A"
    }
    return frozenset(files | unix | ports)


def _lines(table: str) -> list[str]:
    return Path(f"/proc/net/{table}").read_text().splitlines()[1:]
