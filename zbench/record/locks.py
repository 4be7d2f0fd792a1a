"""Locks by flock(2), which end with their process: one at a time writes a run, a site or the tags.

Not `filelock`: where flock(2) is not supported it falls back to a lock that outlives a killed holder, and it
does not tell which process holds a lock.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path
from typing import BinaryIO

from zbench.errors import UsageError
from zbench.masking import masked

_POLL_SECONDS = 0.02
_LONGEST_NAME = 200
_WITHOUT_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK)


class NoLocksError(UsageError):
    """The file system of a directory has no locks."""


class DirectoryLock:
    """A lock on `<directory>/.lock`, held until `release` or the end of the process."""

    def __init__(self, directory: Path, *, patience_s: float = 0.0, is_shared: bool = False) -> None:
        """Take the lock. UsageError that names the process which holds it for longer than `patience_s`,
        NoLocksError if the file system has no locks.

        is_shared: several processes may hold it, and none can take it for itself alone meanwhile.
        """
        self._fd: int | None = _opened(directory / ".lock")
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        end = time.monotonic() + patience_s
        while not self._is_held(self._fd, directory, kind):
            if time.monotonic() >= end:
                with os.fdopen(self._fd, errors="replace") as file:
                    name = masked(file.read(_LONGEST_NAME)).strip() or "another process"
                raise UsageError(f"{directory} is being written by {name}; wait for it or end it first")
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(OSError):  # on a full disk the lock holds without the holder's name
            text = f"process {os.getpid()} on {socket.gethostname()}\n"
            os.ftruncate(self._fd, os.pwrite(self._fd, text.encode(), 0))

    def _is_held(self, fd: int, directory: Path, kind: int) -> bool:
        try:
            return self.is_taken(fd, directory, kind)
        except BaseException:
            self.release()
            raise

    @staticmethod
    def is_taken(fd: int, directory: Path, kind: int) -> bool:
        """Take a lock, and say whether that succeeded; NoLocksError as above."""
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            raise NoLocksError(
                f"{directory}: its file system, {_file_system(directory)}, has no locks (flock: "
                f"{error.strerror}); mount it with them (Lustre: -o flock), or choose another with -o DIR"
            ) from None
        return True

    def share(self) -> None:
        """Let other processes share the lock from now on."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def is_of(self, directory: Path) -> bool:
        """Say whether this is the lock of the directory still: it may have been removed and made anew."""
        try:
            return self._fd is not None and os.path.samestat(os.fstat(self._fd), (directory / ".lock").stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def lock_file(file: BinaryIO, path: Path) -> None:
    """Lock an open file until it is closed. UsageError if another process has it."""
    if not DirectoryLock.is_taken(file.fileno(), path, fcntl.LOCK_EX):
        raise UsageError(f"{path} is being written by another process; wait for it or end it first")


def _opened(lock: Path) -> int:
    """Open a lock's file, made if missing. UsageError for one through which another file is written."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(lock, flags, 0o600)
        about = os.fstat(fd)
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
            return fd
        os.close(fd)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
    raise UsageError(f"{lock} is a link, a pipe or a socket, which zbench never makes; remove it")


def _file_system(place: Path) -> str:
    """Return the type and the mount point of a place's file system, as Linux names them."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    here = place.resolve()
    above = [(len(point), f"{kind} at {point}") for point, kind in mounts if here.is_relative_to(point)]
    return max(above, default=(0, "of an unknown type"))[1]
