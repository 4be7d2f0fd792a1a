"""A noisy neighbour: one busy process on every core that this process may use."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_BUSY = """
import os, sys
core, parent = int(sys.argv[1]), int(sys.argv[2])
os.sched_setaffinity(0, {core})
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def neighbour(present: bool = True) -> Iterator[None]:
    """Keep every core busy inside the context; the processes end by themselves if this one dies."""
    command = [sys.executable, "-S", "-c", _BUSY]
    cores = sorted(os.sched_getaffinity(0)) if present else []
    busy = [subprocess.Popen([*command, str(core), str(os.getpid())]) for core in cores]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()
