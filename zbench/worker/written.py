"""Which files a command wrote: files from before its run are no results of it, and stay as they are."""

import os
from pathlib import Path

from zbench.errors import UsageError

Stamp = tuple[int, int, int]
"""Inode, size in bytes, and time of the last change in nanoseconds of a file."""


class FilesBefore:
    """The files at the paths of a command's checkpoint and of its step times, before the command runs."""

    def __init__(self, checkpoint: Path | None, log: Path | None) -> None:
        self._stamps = {} if checkpoint is None else stamps_below(checkpoint)
        self._log = _bytes_of(log)
        self._log_stamp = None if log is None else _stamp(log)

    def check(self, file: Path) -> None:
        """Raise UsageError if a file of the checkpoint is as it was before the command ran."""
        if self._stamps.get(file) == _stamp(file):
            raise UsageError(
                f"workload.checkpoint: the command did not write {file}: the file is of an earlier run, which"
                " says nothing about this run; save to {output}, or let the command save it every time"
            )

    def new_text(self, log: Path) -> str:
        """Return the text that the command wrote to its log; UsageError if it wrote none to an older log."""
        if self._log is not None and self._log_stamp == _stamp(log):
            raise UsageError(
                f"workload.step_times: the command wrote nothing to {log}: its steps are of an earlier run;"
                " write to {output}, or let the command write its steps every time"
            )
        content = _bytes_of(log) or b""
        added = content.removeprefix(self._log or b"") or content  # of a file that was written anew: all
        return added.decode(errors="replace")


def stamps_below(path: Path) -> dict[Path, Stamp]:
    """Return the stamp of a file, or of every file in a folder; empty if there is none."""
    files = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    stamps = {file: _stamp(file) for file in files or [path]}
    return {file: stamp for file, stamp in stamps.items() if stamp is not None}


def _stamp(file: Path) -> Stamp | None:
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _bytes_of(file: Path | None) -> bytes | None:
    try:
        return None if file is None or not file.is_file() else file.read_bytes()
    except OSError:
        return None
