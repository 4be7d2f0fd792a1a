"""The warm server: imports torch once, then forks the ranks of one trial after another.

`client.WarmServer` starts it as `python -m zbench.launch.server FD ...`, in a session of its own. Two
processes: the guard, which only waits, and its child, the server. Both are subreapers: a process that a trial
starts, in whatever session, becomes the server's child when its parent ends, and the guard's if the server
is killed. So nothing outlives the trial. The server ends when the launcher does (the socket closes), and when
the guard does; the kernel kills the ranks when the server ends.
"""

import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
import time
from multiprocessing import connection

from zbench.launch import preload
from zbench.launch.child import STACKS_SIGNAL, become_rank
from zbench.launch.guard import become_subreaper, end_children, guard
from zbench.launch.messages import DumpStacks, EndGroup, Exited, GroupGone, Ready, Started, StartGroup


class Server:
    """One end of the connection and at most one living group. guard: a pipe that closes with the guard."""

    def __init__(self, launcher: "connection.Connection[object, object]", guard: int, scratch: str) -> None:
        self._launcher, self._guard = launcher, guard
        self._scratch = scratch
        self._ranks: dict[int, int] = {}
        self._group: int | None = None
        self._cpu_seconds = 0.0
        self._woken, wake = socket.socketpair()
        self._woken.setblocking(False)
        wake.setblocking(False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def serve(self, ready: Ready) -> None:
        """Report that all is imported, and obey until launcher or guard is gone; then leave nothing."""
        try:
            self._launcher.send(ready)
            while True:
                waiting = connection.wait([self._launcher, self._woken, self._guard])
                if self._guard in waiting:  # the launcher will replace this server
                    self._kill()
                    self._end_orphans()
                    return
                if self._woken in waiting:
                    self._drain_wakeups()
                    self._reap()
                if self._launcher in waiting:
                    self._obey(self._launcher.recv())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._kill()
            self._end_orphans()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _obey(self, message: object) -> None:
        match message:
            case StartGroup():
                self._start(message)
            case DumpStacks():
                for pid in self._ranks:
                    os.kill(pid, STACKS_SIGNAL)
            case EndGroup():
                self._kill()

    def _start(self, request: StartGroup) -> None:
        assert not self._ranks, "one group at a time"
        server, self._group, self._cpu_seconds = os.getpid(), None, 0.0
        pids = []
        for rank, start in enumerate(request.ranks):
            pid = os.fork()
            if pid == 0:
                self._launcher.close()
                self._woken.close()
                become_rank(start, request.target, self._group or os.getpid(), server)
            self._group = self._group or pid
            _join_group(pid, self._group)
            self._ranks[pid] = rank
            pids.append(pid)
        self._launcher.send(Started(tuple(pids)))

    def _reap(self) -> None:
        while self._ranks:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            self._cpu_seconds += usage.ru_utime + usage.ru_stime
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._launcher.send(Exited(rank, os.waitstatus_to_exitcode(status)))
            if not self._ranks:
                self._kill()
                self._end_orphans()
                self._group = None
                self._launcher.send(GroupGone(self._cpu_seconds))

    def _kill(self) -> None:
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)

    def _end_orphans(self) -> None:
        """Kill and reap whatever the ranks started and left; this process is its parent now."""
        self._cpu_seconds += end_children()

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass


def _join_group(pid: int, group: int) -> None:
    """Put a child into the group; it does so itself too, whichever comes first."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, group)


def main(arguments: list[str]) -> None:
    """Load, report, serve. Arguments: the socket's file descriptor, the scratch directory, the modules."""
    started, launcher_pid = time.monotonic(), os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    become_subreaper()
    guard_alive, held_by_guard = os.pipe()
    server = os.fork()
    if server:
        os.close(int(arguments[0]))
        sys.exit(guard(server, launcher_pid, arguments[1]))
    os.close(held_by_guard)
    become_subreaper()
    launcher: connection.Connection[object, object] = connection.Connection(int(arguments[0]))
    problems = preload.load(tuple(arguments[2:]))
    serving = Server(launcher, guard_alive, arguments[1])
    gc.collect()
    gc.freeze()  # so that no collection in a child touches, and so copies, the shared pages
    serving.serve(Ready(time.monotonic() - started, tuple(problems), os.getpid()))


if __name__ == "__main__":
    main(sys.argv[1:])
