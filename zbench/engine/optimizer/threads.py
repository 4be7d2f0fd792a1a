"""How many threads update on the CPU, and where they run: under backward, which keeps its processors, or
after it. Memory is local.
"""

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import torch

from zbench.topology import Host, node_of_device, this_host

MOST = 16
"""Threads that are taken at most where no number is given: an update is bound by memory, and a socket's is
busy with fewer."""


@dataclass(frozen=True, slots=True)
class OptimizerThreads:
    """count: how many. processors: where to pin them; none where the scheduler decides."""

    count: int
    processors: tuple[int, ...] = ()


def choose(
    count: int | None, *, computing: int, host: Host, near: int | None, alone: bool
) -> OptimizerThreads:
    """Return how many optimizer threads there are and where they run.

    count: None takes the processors of the NUMA node `near` that backward leaves free: at least one, at most
    MOST. Where it leaves fewer than two there, all processors count. computing: threads that backward keeps
    busy. Threads are pinned only if each has a processor that backward does not need, and no other process
    pins to it. So the process is `alone`, or it has been given processors of its own.
    """
    spare = len(host.allowed) - computing
    local = host.near(near)
    if len(local) - computing < min(2, spare):
        local = list(host.allowed)
    threads = max(1, min(spare, MOST, len(local) - computing)) if count is None else count
    owns_processors = alone or len(host.allowed) < host.online
    if threads > spare or not owns_processors:
        return OptimizerThreads(threads)
    others = [p for p in host.allowed if p not in local]
    return OptimizerThreads(threads, tuple(sorted([*others, *local][-threads:])))


def share(host: Host, near: int | None, ranks: int) -> int:
    """Return how many of the processors of the node `near` are this rank's: at least one, at most MOST.
    `ranks` of this host have not been given processors of their own.
    """
    owns_processors = len(host.allowed) < host.online
    return max(1, min(len(host.near(near)) // (1 if owns_processors else ranks), MOST))


def threads_after_backward(count: int | None, device: torch.device) -> int | None:
    """Return how many threads update a model on `device` after backward; None: those that torch computes
    with, which on a CPU have nothing else to do then.
    """
    if count is not None or device.type == "cpu":
        return count
    return share(this_host(), _node_of_gpu(device), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def threads_for(count: int | None, device: torch.device, *, alone: bool) -> OptimizerThreads:
    """Return `choose` for a model on `device`: near the GPU, or near the present thread, which touches memory
    first.
    """
    host = this_host()
    computing = torch.get_num_threads()
    if device.type == "cuda":  # only forward's and autograd's threads, which launch
        computing = min(2, len(host.allowed) - 1)
        near = _node_of_gpu(device)
    else:
        near = host.node_of(ctypes.CDLL(None).sched_getcpu())
    return choose(count, computing=computing, host=host, near=near, alone=alone)


def _node_of_gpu(device: torch.device) -> int | None:
    properties: Any = torch.cuda.get_device_properties(device)
    address = [getattr(properties, f"pci_{part}_id", 0) for part in ("domain", "bus", "device")]
    return node_of_device("{:04x}:{:02x}:{:02x}.0".format(*address))
