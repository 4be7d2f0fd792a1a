"""Which cores each rank may use: ranks do not share cores while there are enough."""

import os
from collections.abc import Sequence
from pathlib import Path

_TOPOLOGY = "/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"


def assign(world_size: int, cores: Sequence[Sequence[int]]) -> list[tuple[int, ...] | None]:
    """Return each rank's logical CPUs: equal runs of whole cores; None (all CPUs) where cores are short.

    cores: the logical CPUs of each physical core. Every rank gets the same number of cores, so that none is
    faster.
    """
    share = len(cores) // world_size
    if share == 0:
        return [None] * world_size
    return [
        tuple(cpu for core in cores[rank * share : (rank + 1) * share] for cpu in core)
        for rank in range(world_size)
    ]


def usable_cores() -> list[tuple[int, ...]]:
    """Return the logical CPUs this process may use, grouped by physical core, in the machine's order."""
    allowed = os.sched_getaffinity(0)
    groups: dict[str, list[int]] = {}
    for cpu in sorted(allowed):
        file = Path(_TOPOLOGY.format(cpu=cpu))
        key = file.read_text().strip() if file.exists() else str(cpu)
        groups.setdefault(key, []).append(cpu)
    return [tuple(cpus) for cpus in groups.values()]
