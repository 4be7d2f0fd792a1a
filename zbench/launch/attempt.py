"""Start one group on the warm server and classify its end; a server that dies is replaced."""

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zbench.launch import disturbance
from zbench.launch.client import ServerLostError, WarmServer
from zbench.launch.group import StopWhen, run_group
from zbench.launch.messages import RankStart, Ready
from zbench.launch.outcome import classify, kernel_oom_kills
from zbench.record.record import Failure, Outcome

OnNotice = Callable[[str], None]
"""Told what happened beside the trials themselves: a group run again, and why."""


@dataclass(frozen=True, slots=True)
class Group:
    """What to start: the function that all ranks call, how each begins, where result and logs belong.

    scratch: a directory that is emptied before a second try, where there is one.
    """

    target: str
    ranks: list[RankStart]
    result_path: Path
    logs: Path
    deadline: float
    stop_when: StopWhen | None = None
    scratch: Path | None = None
    memory_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a group ended, and what disturbed it meanwhile."""

    outcome: Outcome
    error: Failure | None
    disturbance: disturbance.Disturbance | None
    seconds: float

    @property
    def warnings(self) -> list[str]:
        """What disturbed a group that ended well, in words."""
        return self.disturbance.warnings() if self.disturbance and self.outcome == "ok" else []


class Launcher:
    """Keeps one warm server alive, and a scratch directory that goes with it. A context manager."""

    def __init__(self, modules: tuple[str, ...], on_notice: OnNotice) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="zbench-"))
        self._modules = modules
        self._tell = on_notice
        self._server = WarmServer(modules, self.scratch)

    def attempt(self, group: Group, *, log_name: str) -> Attempt:
        """Run the group to its end. log_name: the log directory as the record names it.

        A process that someone kills says nothing about the configuration: the group is run once more.
        """
        first = self._surviving(group, log_name)
        if first.error is None or first.error.kind != "killed":
            return first
        self._tell(f"{first.error.message}; running it again")
        return self._surviving(group, log_name)

    def _surviving(self, group: Group, log_name: str) -> Attempt:
        """Run the group; if the server is killed meanwhile, start another and report the group as killed."""
        empty_directory(group.logs)
        if group.scratch is not None:
            empty_directory(group.scratch)  # a rendezvous file would hold dead ranks' addresses
        try:
            return self._attempt(group, log_name)
        except ServerLostError:
            self._server.close()
            self._server = WarmServer(self._modules, self.scratch)
            message = "the trial server was killed from outside"
            return Attempt("crashed", Failure("killed", message, f"{log_name}/rank0.log"), None, 0.0)

    def wait_until_ready(self) -> Ready:
        """Return when the server has imported everything: how long it took, and what failed."""
        return self._server.wait_until_ready()

    @property
    def server_pid(self) -> int:
        """The process id of the server that is alive now."""
        return self._server.pid

    def close(self) -> None:
        """End the server and remove the scratch directory."""
        self._server.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _attempt(self, group: Group, log_name: str) -> Attempt:
        self._server.wait_until_ready()
        kills, before, own = kernel_oom_kills(), disturbance.snapshot(), time.process_time()
        end = run_group(
            self._server, group.target, group.ranks, deadline=group.deadline, stop_when=group.stop_when
        )
        after, own = disturbance.snapshot(), time.process_time() - own
        outcome, error = classify(
            end,
            result_path=str(group.result_path),
            deadline=group.deadline,
            kernel_oom_kills=kernel_oom_kills() - kills,
            log=log_name,
            memory_limit=group.memory_limit,
        )
        if error is None:
            drop_silent_logs(group.logs)
        what = disturbance.between(before, after, own_cpu_seconds=end.cpu_seconds + own)
        return Attempt(outcome, error, what, end.seconds)


def empty_directory(path: Path) -> None:
    """Make a directory, or clear the files of an earlier attempt from it."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)


def drop_silent_logs(logs: Path) -> None:
    """Remove the logs of ranks that said nothing, and their directory if all were silent."""
    for file in logs.iterdir():
        if file.stat().st_size == 0:
            file.unlink()
    with suppress(OSError):
        logs.rmdir()
