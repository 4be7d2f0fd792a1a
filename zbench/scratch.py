"""Temporary folders that name their owner, so that those of a process that was killed can be removed.

A name holds the machine since its start, the process, and when the process began: process numbers are used
again, and several machines or containers may share a temporary folder.
"""

import contextlib
import os
import re
import shutil
import socket
import stat
import tempfile
import zlib
from pathlib import Path

_NAME = re.compile(r"zbench-([0-9a-f]{8})-(\d+)-(\d+)-\w+", re.ASCII)
_START = 19
"""The place of a process's start among the fields after its name in /proc/PID/stat: ticks since boot."""


def scratch_folder() -> Path:
    """Return a new temporary folder of this process, which removes it at its end."""
    return Path(tempfile.mkdtemp(prefix=_prefix()))


def scratch_directory() -> "tempfile.TemporaryDirectory[str]":
    """Return a temporary folder of this process as a context manager, which removes it."""
    return tempfile.TemporaryDirectory(prefix=_prefix())


def remove_abandoned() -> None:
    """Remove the folders of this user's processes that ended on this machine without removing them."""
    here = _machine()
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            name = _NAME.fullmatch(entry.name)
            if name is None or name[1] != here or _start(int(name[2])) == name[3]:
                continue
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                shutil.rmtree(entry.path, ignore_errors=True)


def _prefix() -> str:
    return f"zbench-{_machine()}-{os.getpid()}-{_start(os.getpid())}-"


def _machine() -> str:
    """Return what names this machine since its start, and the numbering of processes in this container."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        facts.append(os.readlink("/proc/self/ns/pid"))
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return f"{zlib.crc32('|'.join(facts).encode()):08x}"


def _start(pid: int) -> str | None:
    """Return when a process began, None if there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_START]
    return None
