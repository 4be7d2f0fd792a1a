"""The cores that a command and all its processes may use (`--cores`), and which cores are free now."""

import os
import re
import time
from collections.abc import Collection
from pathlib import Path

from zbench.errors import UsageError

_STAT = Path("/proc/stat")
_FREE_BELOW = 0.10
"""Share of its time that a free core is busy at most."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def use_cores(text: str | None, ranks: int = 1) -> None:
    """Keep this process, and the processes that it starts from now on, to a list of cores such as `0-3,6`.

    ranks: how many ranks run on them. UsageError for a wrong list, for cores that do not exist or may not be
    used, and for fewer cores than ranks. None leaves all cores.
    """
    if text is None:
        return
    cores = parsed(text)
    usable = os.sched_getaffinity(0)
    if missing := sorted(cores - usable):
        found = in_ranges(usable)
        raise UsageError(f"--cores: core {missing[0]} is not there for this process; it may use {found}")
    if len(cores) < ranks:
        counts = f"{len(cores)} for {ranks} ranks; name {ranks} or more"
        raise UsageError(f"--cores: {counts}, or set fewer ranks (run.world_size)")
    os.sched_setaffinity(0, cores)


def parsed(text: str) -> set[int]:
    """Return the cores of a list such as `0-3,6`. UsageError for any other text."""
    cores = set[int]()
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
        if int(last) < int(first):
            raise UsageError(f"--cores: expected a list such as 0-3,6, got {text!r}")
        cores |= set(range(int(first), int(last) + 1))
    return cores


def in_ranges(cores: Collection[int]) -> str:
    """Return cores as a list such as `0-3,6`."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and ranges[-1][-1] == core - 1:
            ranges[-1][1:] = [core]
        else:
            ranges.append([core])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def free_cores(seconds: float = 0.5) -> set[int]:
    """Return the usable cores that were idle for nine tenths of some time from now."""
    before, began = _busy_seconds(), time.monotonic()
    time.sleep(seconds)
    after, passed = _busy_seconds(), time.monotonic() - began
    usable = os.sched_getaffinity(0) & before.keys() & after.keys()
    return {core for core in usable if after[core] - before[core] < _FREE_BELOW * passed}


def _busy_seconds() -> dict[int, float]:
    """Return core -> seconds busy or stolen since boot."""
    ticks = os.sysconf("SC_CLK_TCK")
    busy = {}
    for line in _STAT.read_text().splitlines():
        name, *fields = line.split()
        if re.fullmatch(r"cpu\d+", name):
            user, nice, system, _idle, _wait, irq, soft, stolen, *_ = map(int, fields)
            busy[int(name[3:])] = (user + nice + system + irq + soft + stolen) / ticks
    return busy
