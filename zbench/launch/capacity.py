"""How many ranks this machine can start; asked before a sweep begins, so that it fails at once."""

import os
import resource
from pathlib import Path

import psutil

from zbench.errors import UsageError
from zbench.units import format_bytes

RANK_BYTES = 64 << 20
"""What an idle rank needs for itself beside the memory it shares with the server (measured: 40 to 60 MB)."""

MAX_RANKS = 64
"""The most ranks that are started on one host."""

_SPARE_PROCESSES = 64


def check_world_size(world_size: int) -> None:
    """Raise UsageError if this many ranks cannot be started here, saying what limits them."""
    most, limit = max_ranks()
    if world_size > most:
        raise UsageError(
            f"run.world_size: {world_size} ranks cannot be started on this machine: {limit} allow {most}; "
            f"use a world size of at most {most} (this machine has {os.cpu_count()} cores), span hosts with "
            "--slurm or torchrun, or ask `zbench estimate`, which starts none"
        )


def max_ranks() -> tuple[int, str]:
    """Return the largest world size that can start, and what limits it."""
    available = psutil.virtual_memory().available
    limits = [
        (MAX_RANKS, "zbench's bounds for one host"),
        (available // RANK_BYTES, f"{format_bytes(available)} of free memory"),
    ]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY:
        limits.append((max(0, soft - _SPARE_PROCESSES), f"{soft} processes (ulimit -u)"))
    pid_max = Path("/proc/sys/kernel/pid_max")
    if pid_max.exists():
        most = int(pid_max.read_text())
        limits.append((max(0, most - len(psutil.pids()) - _SPARE_PROCESSES), f"{most} process ids"))
    return min(limits)
