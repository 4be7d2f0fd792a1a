"""Two machines in one: a network, a host name and process numbers of their own each, joined by one cable."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """One namespace, its end of the cable and its address there."""

    name: str
    interface: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs `arguments` on this node."""
        apart = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
        start = f'hostname {self.name} && exec "$@"'
        return ["ip", "netns", "exec", self.name, *apart, "sh", "-c", start, "node", *arguments]

    def received(self) -> int:
        """Return the bytes that have come in through the cable."""
        counter = f"/sys/class/net/{self.interface}/statistics/rx_bytes"
        return int(_output(*self.command("cat", counter)))


def why_not() -> str | None:
    """Return why no such nodes can be made here, or None."""
    missing = [tool for tool in ("ip", "unshare", "hostname") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    name = f"zb{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.strip()}"
    _output("ip", "netns", "del", name)
    return None


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Make two nodes and take them down again."""
    stem = f"zb{os.getpid()}"
    nodes = tuple(Node(f"{stem}n{k}", f"{stem}v{k}", f"10.213.0.{k + 1}") for k in range(2))
    try:
        for node in nodes:
            _output("ip", "netns", "add", node.name)
        a, b = nodes
        _output("ip", "link", "add", a.interface, "type", "veth", "peer", "name", b.interface)
        for node in nodes:
            _output("ip", "link", "set", node.interface, "netns", node.name)
            inside = ("ip", "-n", node.name)
            _output(*inside, "addr", "add", f"{node.address}/24", "dev", node.interface)
            _output(*inside, "link", "set", node.interface, "up")
            _output(*inside, "link", "set", "lo", "up")
        yield a, b
    finally:
        for node in nodes:
            subprocess.run(["ip", "netns", "del", node.name], capture_output=True, check=False)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
