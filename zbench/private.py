"""Folders of this user alone, for everything whose contents are run or loaded: compiled code, environments.

Who can write to such a folder, or can put another one in its place, runs code as this user. So the folder
must be this user's with no rights for others, and no folder above it may be in the hands of others. sshd's
StrictModes asks the same of a home directory.
"""

import os
import stat
from pathlib import Path

from zbench.errors import UsageError, reason_of


def cache_directory(*names: str) -> Path:
    """Return a place in zbench's cache, `$XDG_CACHE_HOME/zbench`; nothing is made or checked."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base, "zbench", *names).absolute()


def private_cache(*names: str) -> Path:
    """Return a folder of this user alone in zbench's cache, made if missing; UsageError as below.

    One that others could read, but not write, is closed to them: its contents are this user's own.
    """
    folder = cache_directory(*names)
    try:
        about = folder.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022:
            folder.chmod(0o700)
    except OSError:
        pass  # it is not there yet, or is not this user's, which is said below
    return private_directory(folder, "remove it, or name another cache by XDG_CACHE_HOME")


def private_directory(folder: Path, remedy: str) -> Path:
    """Return a folder of this user alone, made if missing.

    UsageError, which ends with the remedy, for one that others own, can read, write or replace.
    """
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        problem = exposure(folder)
    except OSError as error:
        problem = f"{folder} cannot be used: {reason_of(error)}"
    if problem is not None:
        raise UsageError(f"{problem}; code that others put there would be run: {remedy}")
    return folder


def exposure(folder: Path) -> str | None:
    """Return how others can reach a folder's contents, None if they cannot."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        return f"{folder}: expected a folder that is yours, with the mode 0700"
    for above in folder.resolve().parents:
        about = above.stat()
        if about.st_uid not in (0, os.geteuid()):
            return f"{folder} lies in {above}, which belongs to another user"
        if about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX:
            return f"{folder} lies in {above}, to which other users may write"
    return None
