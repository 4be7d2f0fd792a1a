"""The reaper of a trial server: when the server ends, for any reason, it ends all remaining processes."""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterable

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.005
KILLED = 128
"""Exit status of the reaper of a server that signal n killed: KILLED + n."""


class ChildEnds:
    """Readable when a child of this process may have ended: SIGCHLD writes to this pipe.

    Not pidfd_open(2), which containers may refuse, and which Linux has only since 5.3.
    """

    def __init__(self) -> None:
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""
        return self._pipe[0]

    def reaped(self, pids: Iterable[int]) -> dict[int, tuple[int, "resource.struct_rusage"]]:
        """Return status and usage of those of these children that have ended; they are gone then."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe[0], 1 << 16)
        ends = [os.wait4(pid, os.WNOHANG) for pid in pids]
        return {pid: (status, usage) for pid, status, usage in ends if pid != 0}

    def close(self) -> None:
        """In a forked child: leave the pipe to the parent."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in self._pipe:
            os.close(end)


def become_subreaper() -> None:
    """Have the kernel make this process the parent of every orphan below it (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(server: int, launcher: int, scratch: str) -> int:
    """Wait for the server's end, kill everything that it left, and return its exit status as a shell does.

    SIGTERM kills the server first. The scratch directory goes, too, if the launcher is gone.
    """
    signal.signal(signal.SIGTERM, lambda *_: os.kill(server, signal.SIGKILL))
    # WNOWAIT: the server's number stays taken while SIGTERM may come
    ended = os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_children()
    if os.getppid() != launcher:
        shutil.rmtree(scratch, ignore_errors=True)
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else KILLED + ended.si_status


def end_children() -> float:
    """Kill and reap every child, and the children that they leave to this process; return their CPU time."""
    cpu_seconds = 0.0
    while True:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return cpu_seconds
        cpu_seconds += usage.ru_utime + usage.ru_stime
        if pid == 0:
            for child in psutil.Process().children():
                child.kill()
            time.sleep(_POLL_SECONDS)
