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
from collections.abc import Callable
from pathlib import Path

from zbench.errors import UsageError
from zbench.units import format_bytes

_NAME = re.compile(r"zbench-([0-9a-f]{8})-(\d+)-(\d+)-\w+", re.ASCII)
_STATE_FOLDER = "ZBENCH_SCRATCH"
_IN_MEMORY = ("tmpfs", "ramfs")
_START = 19
"""The place of a process's start among the fields after its name in /proc/PID/stat: ticks since boot."""


def scratch_folder() -> Path:
    """Return a new temporary folder of this process, which removes it at its end."""
    return Path(tempfile.mkdtemp(prefix=_prefix()))


def scratch_directory() -> "tempfile.TemporaryDirectory[str]":
    """Return a temporary folder of this process as a context manager, which removes it."""
    return tempfile.TemporaryDirectory(prefix=_prefix())


def state_folder() -> str:
    """Return the folder of files that hold a model's state: `ZBENCH_SCRATCH`, or that of temporary files."""
    return os.environ.get(_STATE_FOLDER) or tempfile.gettempdir()


def use_state_folder(folder: Path | None, warn: Callable[[str], None]) -> None:
    """Keep files that hold a model's state in `folder`, in this process and its children.

    UsageError if it is no folder that can be written to; `warn` is called if its files are in memory.
    """
    if folder is not None:
        os.environ[_STATE_FOLDER] = str(folder.absolute())
    used = state_folder()
    if not (os.path.isdir(used) and os.access(used, os.W_OK)):
        raise UsageError(f"--scratch: expected a folder that can be written to, got {used}")
    if _file_system(used) in _IN_MEMORY and (folder is not None or _STATE_FOLDER in os.environ):
        warn(
            f"--scratch: {used} is a {_file_system(used)}, so its files take memory; name a folder on a disk"
        )


def require_room(needed: int) -> None:
    """UsageError, with the remedy, if `needed` bytes do not fit the folder of a model's state."""
    folder = state_folder()
    free = shutil.disk_usage(folder).free
    if needed > free:
        kind = f" ({_file_system(folder)})" if _file_system(folder) in _IN_MEMORY else ""
        raise UsageError(
            f"verify: the state before a replayed step takes {format_bytes(needed)} in {folder}{kind}, which"
            f" has {format_bytes(free)} free; name another folder by --scratch, or set verify.mode: off"
        )


def _file_system(folder: str) -> str:
    """Return the type of the file system that holds a folder, such as ext4 or tmpfs; empty if unknown."""
    path, best, kind = os.path.realpath(folder), "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mounted, found, *_ = line.split()
            if len(mounted) >= len(best) and (path + "/").startswith(mounted.rstrip("/") + "/"):
                best, kind = mounted, found
    return kind


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
