"""The trial server: imports torch once, then forks the ranks of trials, of several trials at once if needed.

`client.WarmServer` starts it as `python -m zbench.launch.process.server FD ...`, in a session of its own. The
reaper only waits for its child, the server. The server forks a keeper for each group of ranks. The keeper
forks the ranks and talks to the launcher about them. All three are subreapers: a process that a trial starts,
in whatever session, becomes its keeper's child when its parent ends, and the reaper's if server and keeper
are killed. So nothing outlives the trial. The server ends when the launcher does (the socket closes),
and when the reaper does; the kernel kills keepers when the server ends, and ranks when their keeper does.

Only imports happen in the server: fork is safe after imports, and not after any parallel region (the child
would hang in OpenMP).
"""

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing import connection, reduction
from typing import NoReturn

from zbench.children import die_with_parent
from zbench.job.calling import call
from zbench.job.failures import message_of, report
from zbench.job.messages import (
    EndGroup,
    Exited,
    GroupGone,
    KeeperFailed,
    RankStart,
    Ready,
    Started,
    StartGroup,
)
from zbench.launch.process.reaper import ChildEnds, become_subreaper, end_children, reap
from zbench.topology import pinning_refusal

_STACKS_SIGNAL = signal.SIGUSR1
_STACKS_SECONDS = 0.3


class Server:
    """Forks a keeper for each group of ranks. reaper: a pipe that closes with the reaper."""

    def __init__(self, launcher: "connection.Connection[object, object]", reaper: int, scratch: str) -> None:
        self._launcher, self._reaper, self._scratch = launcher, reaper, scratch
        self._keepers = set[int]()
        self._ends = ChildEnds()

    def serve(self, ready: Ready) -> None:
        """Report that imports are complete, and serve requests until launcher or reaper end; then end all."""
        try:
            self._launcher.send(ready)
            while True:
                waiting = connection.wait([self._launcher, self._reaper, self._ends.fileno()])
                if self._reaper in waiting:  # the launcher will replace this server
                    break
                self._keepers -= self._ends.reaped(self._keepers).keys()
                if self._launcher in waiting:
                    request = self._launcher.recv()
                    assert isinstance(request, StartGroup)
                    self._start(request)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            end_children()
            shutil.rmtree(self._scratch, ignore_errors=True)
        end_children()

    def _start(self, request: StartGroup) -> None:
        """Fork the keeper of a group; the launcher's socket to it follows the request."""
        theirs = reduction.recv_handle(self._launcher)
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            self._ends.close()
            self._launcher.close()
            with contextlib.suppress(EOFError, OSError):  # the launcher is gone
                die_with_parent(server)
                become_subreaper()
                Keeper(connection.Connection(theirs)).keep(request)
            os._exit(0)
        os.close(theirs)
        self._keepers.add(pid)


class Keeper:
    """Starts the ranks of one group, reports their ends to the launcher, and ends all their processes."""

    def __init__(self, launcher: "connection.Connection[object, object]") -> None:
        self._launcher = launcher
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._ends = ChildEnds()
        self._group = 0
        self._cpu_seconds, self._peak_rss_bytes = 0.0, 0

    def keep(self, request: StartGroup) -> None:
        """Return when the group is gone; it ends when the launcher says so, or is gone."""
        failure = None
        try:
            self._start(request)
            while self._ranks:
                waiting = connection.wait([self._launcher, self._ends.fileno()])
                self._reap()
                if self._launcher in waiting:
                    self._obey(self._launcher.recv())
        except Exception as error:
            failure = KeeperFailed(reason_with_call(error))
        self._kill()
        self._cpu_seconds += end_children()
        self._launcher.send(failure or GroupGone(self._cpu_seconds, self._peak_rss_bytes))

    def _start(self, request: StartGroup) -> None:
        keeper = os.getpid()
        pids = []
        for rank, start in enumerate(request.ranks):
            pid = os.fork()
            if pid == 0:
                self._ends.close()
                self._launcher.close()
                become_rank(start, request.target, self._group or os.getpid(), keeper)
            self._group = self._group or pid
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.setpgid(pid, self._group)  # the child does so, too, whichever comes first
            self._ranks[pid] = rank
            pids.append(pid)
        self._launcher.send(Started(tuple(pids)))

    def _obey(self, message: object) -> None:
        assert isinstance(message, EndGroup)
        if message.dump_stacks:
            for pid in self._ranks:
                os.kill(pid, _STACKS_SIGNAL)
            time.sleep(_STACKS_SECONDS)
        self._kill()

    def _reap(self) -> None:
        """Report the ends of ranks."""
        for pid, (status, usage) in self._ends.reaped(self._ranks).items():
            self._cpu_seconds += usage.ru_utime + usage.ru_stime
            self._peak_rss_bytes = max(self._peak_rss_bytes, usage.ru_maxrss * 1024)
            self._launcher.send(Exited(self._ranks.pop(pid), os.waitstatus_to_exitcode(status)))

    def _kill(self) -> None:
        if self._group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)


def reason_with_call(error: BaseException) -> str:
    """Return an error's message, and the line of code that failed: the kernel does not name a call."""
    return f"{message_of(error)}, at `{traceback.extract_tb(error.__traceback__)[-1].line}`"


def become_rank(start: RankStart, target: str, group: int, keeper: int) -> NoReturn:
    """Run `target` in this forked process and exit: 0 if it returned, 1 if it raised."""
    code = 1
    try:
        die_with_parent(keeper)
        os.setpgid(0, group)
        _redirect(start.log)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.enable()
        faulthandler.register(_STACKS_SIGNAL, all_threads=True)
        if start.cpus is not None and (refusal := pinning_refusal(start.cpus)) is not None:
            print(f"this rank is not pinned to its cores: {refusal}")
        code = call(target, lambda: pickle.loads(start.job), start.error)
    except BaseException as error:
        traceback.print_exc()
        code = report(error, *start.error, reason_with_call(error))
    finally:
        with contextlib.suppress(Exception):  # a full disk must not send this process on as a keeper
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect(log: str) -> None:
    with open(os.devnull, "rb") as empty, open(log, "ab") as output:
        os.dup2(empty.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def load(modules: Sequence[str]) -> list[str]:
    """Import the modules in order; return failures in words: a trial that needs the module fails later."""
    problems = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
    return problems


def main(arguments: list[str]) -> None:
    """Load, report, serve. Arguments: the socket's file descriptor, the scratch directory, the modules."""
    started = time.monotonic()
    launcher_pid = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    become_subreaper()
    reaper_alive, held_by_reaper = os.pipe()
    server = os.fork()
    if server:
        os.close(int(arguments[0]))
        sys.exit(reap(server, launcher_pid, arguments[1]))
    os.close(held_by_reaper)
    become_subreaper()
    launcher: connection.Connection[object, object] = connection.Connection(int(arguments[0]))
    problems = load(arguments[2:])
    serving = Server(launcher, reaper_alive, arguments[1])
    gc.collect()
    gc.freeze()  # so that no collection in a child touches, and so copies, the shared pages
    try:
        serving.serve(Ready(time.monotonic() - started, tuple(problems), os.getpid()))
    except Exception as error:
        sys.exit(reason_with_call(error))


if __name__ == "__main__":
    main(sys.argv[1:])
