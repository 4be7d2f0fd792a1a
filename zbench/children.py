"""Processes that end with the process that started them, however that ends: SIGKILL runs no `finally`."""

import ctypes
import errno
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence

_POLL_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
_BOUND = (
    "import ctypes, os, sys; parent, *command = sys.argv[1:];"
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0);"
    "os.getppid() == int(parent) and os.execvp(command[0], command); os._exit(1)"
)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent (thread) ends; end now if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def bound(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command`, and is killed when the thread that starts it ends.

    The kernel keeps that over `exec`, so it works for programs that know nothing of it, other versions of
    zbench among them. FileNotFoundError, as from `Popen`, if there is no such program.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    return [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), *command]


def watch_parent(parent: int) -> None:
    """End this process soon after the process that started it, from a thread of its own.

    For processes that are started from threads: the kernel's own signal comes when the thread ends.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
