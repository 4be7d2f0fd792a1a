"""The messages between a launcher, its trial server, and the keeper of each group of ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankStart:
    """How one process of a group starts.

    job: the pickled argument of the target. log: the file that takes stdout and stderr. error: where an
    escaped exception is written (`zbench.job.failures.write_error`), as (result path, rank). cpus: the cores
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
class EndGroup:
    """Kill the group's remaining processes. dump_stacks: they first write their stacks to their logs."""

    dump_stacks: bool = False


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
class KeeperFailed:
    """The keeper of a group could not go on, for this reason; its processes have ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class GroupGone:
    """All processes of the group, and all that they started, have ended. cpu_seconds: of all of them.

    peak_rss_bytes: the largest resident memory of one rank.
    """

    cpu_seconds: float
    peak_rss_bytes: int
