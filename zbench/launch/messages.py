"""What the launcher and the warm server say to each other, one pickled message at a time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankStart:
    """How one process of a group begins.

    job: the pickled argument of the target. log: the file that takes stdout and stderr. error: where an
    escaped exception is written (`zbench.worker.job.write_error`), as (result path, rank). cpus: the cores
    it may use, None for all.
    """

    job: bytes
    log: str
    error: tuple[str, int | str]
    cpus: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Fork one process for each start, all in one process group, to call `target` (`module:function`)."""

    target: str
    ranks: tuple[RankStart, ...]


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Have every living rank write its Python stacks to its log."""


@dataclass(frozen=True, slots=True)
class EndGroup:
    """Kill what is left of the group."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The server has imported everything; `seconds` it took, `problems` are imports that failed."""

    seconds: float
    problems: tuple[str, ...]
    pid: int


@dataclass(frozen=True, slots=True)
class Started:
    """The group runs; pids in rank order, the first one is the process group."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exited:
    """One rank ended. code: its exit status; -n for signal n."""

    rank: int
    code: int


@dataclass(frozen=True, slots=True)
class GroupGone:
    """No process of the group, nor any that it started, is left. cpu_seconds: what all of them used."""

    cpu_seconds: float
