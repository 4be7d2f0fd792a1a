"""How many threads update on the CPU, and where they run: under backward, which keeps its processors, or
after it. Memory is local.
"""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MOST = 16
"""Threads that are taken at most where no number is given: an update is bound by memory, and a socket's is
busy with fewer."""
_NODES = Path("/sys/devices/system/node")
_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Machine:
    """allowed: the processors of this process. nodes: the processors of each NUMA node. online: all
    processors.
    """

    allowed: tuple[int, ...]
    nodes: tuple[tuple[int, ...], ...]
    online: int

    def near(self, node: int) -> list[int]:
        """Return the allowed processors of a NUMA node."""
        return [p for p in self.allowed if p in self.nodes[node]] if node < len(self.nodes) else []


@dataclass(frozen=True, slots=True)
class OptimizerThreads:
    """count: how many. processors: where to pin them; none where the scheduler decides."""

    count: int
    processors: tuple[int, ...] = ()


def choose(
    wanted: int | None, *, computing: int, machine: Machine, near: int, alone: bool
) -> OptimizerThreads:
    """Return how many optimizer threads there are and where they run.

    wanted: None takes the processors of the node `near` that backward leaves free: at least one, at most
    MOST. computing: threads that backward keeps busy. Threads are pinned only if each has a processor that
    backward does not need and no other process pins to it: the process is `alone`, or it has been given
    processors of its own.
    """
    local = machine.near(near)
    spare = len(machine.allowed) - computing
    threads = max(1, min(spare, MOST, len(local) - computing)) if wanted is None else wanted
    own = alone or len(machine.allowed) < machine.online
    if threads > spare or not own:
        return OptimizerThreads(threads)
    others = [p for p in machine.allowed if p not in local]
    return OptimizerThreads(threads, tuple(sorted([*others, *local][-threads:])))


def share(machine: Machine, near: int, ranks: int) -> int:
    """Return how many of the processors of the node `near` are this rank's, where `ranks` of this host have
    not been given processors of their own: at least one, at most MOST.
    """
    own = len(machine.allowed) < machine.online
    return max(1, min(len(machine.near(near) or machine.allowed) // (1 if own else ranks), MOST))


def threads_after_backward(wanted: int | None, device: torch.device) -> int | None:
    """Return how many threads update a model on `device` after backward; None: those that torch computes
    with, which on a CPU have nothing else to do then.
    """
    if wanted is not None or device.type == "cpu":
        return wanted
    return share(this_machine(), _node_of_gpu(device), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def this_machine() -> Machine:
    """Return the processors that this process may use now."""
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    folders = sorted(_NODES.glob("node[0-9]*"), key=lambda f: int(f.name.removeprefix("node")))
    nodes = tuple(tuple(_parsed((folder / "cpulist").read_text())) for folder in folders) or (allowed,)
    return Machine(allowed, nodes, os.cpu_count() or len(allowed))


def threads_for(wanted: int | None, device: torch.device, *, alone: bool) -> OptimizerThreads:
    """Return `choose` for a model on `device`: near the GPU, or near the present thread, which touches memory
    first.
    """
    machine = this_machine()
    computing = torch.get_num_threads()
    if device.type == "cuda":  # only forward's and autograd's threads, which launch
        computing = min(2, len(machine.allowed) - 1)
        near = _node_of_gpu(device)
    else:
        here = ctypes.CDLL(None).sched_getcpu()
        near = next((k for k, node in enumerate(machine.nodes) if here in node), 0)
    return choose(wanted, computing=computing, machine=machine, near=near, alone=alone)


def _node_of_gpu(device: torch.device) -> int:
    properties: Any = torch.cuda.get_device_properties(device)
    address = [getattr(properties, f"pci_{part}_id", 0) for part in ("domain", "bus", "device")]
    file = _DEVICES / "{:04x}:{:02x}:{:02x}.0".format(*address) / "numa_node"
    return max(int(file.read_text()), 0) if file.exists() else 0


def _parsed(ranges: str) -> Sequence[int]:
    """Return the processors of a list such as `0-3,8`."""
    processors: list[int] = []
    for part in filter(None, ranges.strip().split(",")):
        first, _, last = part.partition("-")
        processors += range(int(first), int(last or first) + 1)
    return processors
