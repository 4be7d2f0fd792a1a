"""A lock file: at most one living process writes a run directory. The kernel releases it with its holder.

Not `filelock`: where flock(2) is not supported it falls back to a lock that outlives a killed holder, and it
does not tell which process holds a lock.
"""

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from zbench.errors import UsageError


class DirectoryLock:
    """An exclusive lock on `<directory>/.lock`, held until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        """Take the lock, or raise UsageError that names the process holding it."""
        self._fd: int | None = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(self._fd, errors="replace") as file:
                holder = file.read().strip() or "another process"
            raise UsageError(
                f"{directory} is being written by {holder}; wait for it or end it first"
            ) from None
        with contextlib.suppress(
            OSError
        ):  # on a full disk the lock holds all the same, without the holder's name
            name = f"process {os.getpid()} on {socket.gethostname()}\n"
            os.ftruncate(self._fd, os.pwrite(self._fd, name.encode(), 0))

    def release(self) -> None:
        """Let others write; harmless twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
