"""Where the nodes of a cluster meet, whatever their names resolve to."""

import os
import socket
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from zbench.launch.cluster import node
from zbench.launch.cluster.node import NodeWorker, address_of_node
from zbench.launch.cluster.slurm_node import own_address
from zbench.launch.executor import DEFAULT_TARGETS


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what each name resolves to here; one that is not in it resolves to nothing."""
    addresses: dict[str, str] = {}

    def getaddrinfo(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if name not in addresses:
            raise socket.gaierror(-2, "Name or service not known")
        each = addresses[name].split()
        return [(socket.AF_INET6 if ":" in one else socket.AF_INET, 0, 0, "", (one, 0)) for one in each]

    routes = {"10.0.0.6": "10.0.0.5", "fd00::6": "fd00::5", "127.0.1.1": "127.0.0.1"}
    monkeypatch.setattr(node.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(node, "route_to", routes.get)
    return addresses


def interfaces(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> None:
    """Let this machine have these interfaces; one whose name begins with `down` is down."""
    each = {name: [SimpleNamespace(family=socket.AF_INET, address=one)] for name, one in addresses.items()}
    up = {name: SimpleNamespace(isup=not name.startswith("down")) for name in addresses}
    monkeypatch.setattr(node.psutil, "net_if_addrs", lambda: each)
    monkeypatch.setattr(node.psutil, "net_if_stats", lambda: up)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ({"one": "10.0.0.5", "two": "10.0.0.6"}, "10.0.0.5"),
        ({"one": "127.0.1.1", "two": "10.0.0.6"}, "10.0.0.5"),  # as Debian enters a machine's own name
        ({"two": "10.0.0.6"}, "10.0.0.5"),
        ({"one": "127.0.1.1", "two": "fd00::6"}, "fd00::5"),
        ({"one": "127.0.1.1", "two": "fd00::6 10.0.0.6"}, "10.0.0.5"),
        ({"one": "127.0.1.1"}, "192.168.7.7"),
        ({"one": "192.168.7.9"}, "192.168.7.9"),
    ],
)
def test_a_node_has_an_address_that_others_can_connect_to(
    addresses: dict[str, str], expected: str, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names |= addresses
    interfaces(monkeypatch, lo="127.0.0.1", down0="10.9.9.9", eth0="192.168.7.7")
    assert address_of_node("one", ["two"]) == expected


def test_a_node_of_a_slurm_job_asks_for_the_way_to_the_others(
    names: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So that gloo and NCCL take the interface that the others are on, and not the one of their own name."""
    names |= {"one": "127.0.1.1", "two": "10.0.0.6"}
    interfaces(monkeypatch, lo="127.0.0.1", eth0="192.168.7.7", ib0="10.0.0.5")
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in variables:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(node, "LocalExecutor", lambda *_, **__: None)
    address = own_address(Namespace(hostnames=["one", "two"], global_rank=0))
    worker = NodeWorker(str(tmp_path), DEFAULT_TARGETS, address)
    assert [os.environ[name] for name in variables] == ["ib0", "ib0"]
    worker = NodeWorker(str(tmp_path), DEFAULT_TARGETS, "127.0.0.1")
    assert worker.meeting_point().startswith("tcp://127.0.0.1:")
