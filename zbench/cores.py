"""The cores that a command and all its processes may use (`--cores`)."""

import os
import re
from collections.abc import Collection

from zbench.errors import UsageError

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
