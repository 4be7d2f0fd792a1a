"""One group of ranks from start to end: deadline, failures, hangs, interruption. Knows nothing of trials."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from zbench.launch.client import WarmServer
from zbench.launch.messages import Exited, GroupGone, RankStart

PEER_GRACE_SECONDS = 2.0
"""How long the other ranks may go on after one failed: they may say why, but mostly wait for it in vain."""

_STACKS_SECONDS = 0.3
_POLL_SECONDS = 0.05

StopWhen = Callable[[], str | None]


@dataclass(slots=True)
class GroupEnd:
    """How a group ended. `exits`: ranks that ended by themselves; `ended`: those that were killed.

    suspended: a rank that was stopped by a signal when the deadline came.
    """

    exits: dict[int, Exited] = field(default_factory=dict)
    ended: dict[int, Exited] = field(default_factory=dict)
    timed_out: bool = False
    suspended: int | None = None
    stopped: str | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def note(self, event: Exited | GroupGone) -> None:
        """Keep what an event after the end of watching says."""
        if isinstance(event, GroupGone):
            self.cpu_seconds = event.cpu_seconds
        else:
            self.ended[event.rank] = event


def run_group(
    server: WarmServer,
    target: str,
    ranks: list[RankStart],
    *,
    deadline: float,
    stop_when: StopWhen | None = None,
) -> GroupEnd:
    """Start the ranks and return when none of them is left, after `deadline` seconds at the latest.

    stop_when: polled while the group runs, and once after it; a reason ends the group. Whatever interrupts
    this call ends the server and so the group. ServerLostError if the server died.
    """
    server.wait_until_ready()
    began = time.monotonic()
    end = GroupEnd()
    try:
        pids = server.start_group(target, ranks)
        _watch(server, end, began + deadline, stop_when)
        end.suspended = _suspended(pids) if end.timed_out else None
        server.end_group(end.note)
        if stop_when is not None:
            stop_when()  # shows what came after the last poll; nothing is left to be ended
    except BaseException:
        server.close()  # an interrupted conversation cannot be taken up again
        raise
    end.seconds = time.monotonic() - began
    return end


def _watch(server: WarmServer, end: GroupEnd, deadline: float, stop_when: StopWhen | None) -> None:
    """Return when the group is gone, or has to be ended."""
    give_up = deadline
    while True:
        remaining = give_up - time.monotonic()
        if remaining <= 0:
            end.timed_out = give_up == deadline
            if end.timed_out:
                server.dump_stacks()
                time.sleep(_STACKS_SECONDS)
            return
        event = server.next_event(min(remaining, _POLL_SECONDS) if stop_when else remaining)
        if isinstance(event, GroupGone):
            end.note(event)
            return
        if isinstance(event, Exited):
            end.exits[event.rank] = event
            if event.code != 0:
                give_up = min(give_up, time.monotonic() + PEER_GRACE_SECONDS)
        elif stop_when is not None and (reason := stop_when()):
            end.stopped = reason
            return


def _suspended(pids: Sequence[int]) -> int | None:
    """Return the first rank whose process is stopped, None where all run."""
    for rank, pid in enumerate(pids):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                return rank
    return None
