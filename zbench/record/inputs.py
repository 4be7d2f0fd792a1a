"""All repeats of a run have one kind of machine and the same user's files, which are compared by digests."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from zbench.errors import UsageError
from zbench.record.record import Record

_HASH = partial(hashlib.blake2b, digest_size=8)
_WHOLE = 64 << 20
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_KNOWN = tuple(
    f"{place}{os.sep}"
    for place in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
)
"""Folders of Python's and zbench's files, as text: comparing paths takes 50 ms where torch is imported."""


def digest(path: Path) -> str:
    """Return 16 hex digits of a file's contents; OSError where it cannot be read.

    For a file above 64 MiB it is a digest of its size and modification time.
    """
    about = path.stat()
    if about.st_size <= _WHOLE:
        with path.open("rb") as file:  # in pieces: what a trial holds at its peak is a figure of it
            return hashlib.file_digest(file, _HASH).hexdigest()
    return _HASH(f"{about.st_size} {about.st_mtime_ns}".encode()).hexdigest()


def inputs(named: Iterable[Path], base_dir: Path) -> dict[str, str]:
    """Return name -> digest of the files `named` and of the user's Python files that this process imported.

    A name is relative to `base_dir` if the file is inside.
    """
    base = base_dir.resolve()
    digests = {}
    for path in sorted({path.resolve() for path in [*named, *_own_modules()]}):
        name = str(path.relative_to(base) if path.is_relative_to(base) else path)
        try:
            digests[name] = digest(path)
        except OSError:
            digests[name] = "removed"
    return digests


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names that both have, with other contents."""
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def _own_modules() -> list[Path]:
    """Return the source files of imported modules that are neither Python's, nor installed, nor zbench's."""
    modules = dict(sys.modules)
    named = {name: _file(module) for name, module in modules.items() if name != "__main__"}
    files = {name: file for name, file in named.items() if file.endswith(".py") and _is_own(file)}
    # torch writes modules, too
    packages = {name: _file(modules.get(name.partition(".")[0])) for name in files}
    return [Path(file) for name, file in files.items() if not packages[name] or _is_own(packages[name])]


def _file(module: object) -> str:
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else ""


def _is_own(file: str) -> bool:
    return not file.startswith(_KNOWN) and not any(part in file for part in _INSTALLED)


class Shared:
    """The machine and the files of all repeats of a run so far."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._machine: str | None = None
        self._inputs: dict[str, str] = {}
        for record in records:
            self.note(record)

    def note(self, record: Record) -> None:
        """Add the machine and the files of a repeat."""
        self._machine = self._machine or record.machine
        self._inputs |= record.inputs

    def require(self, record: Record) -> None:
        """Raise UsageError if a repeat had another machine or other files: a run has one ranking.

        With unlike machines the ranking would depend on where repeats ran, and with an edited file it would
        mix two models.
        """
        if None not in (self._machine, record.machine) and record.machine != self._machine:
            raise UsageError(
                f"a repeat of {record.trial_id} ran on another kind of machine ({record.machine}) than those"
                f" before it ({self._machine}), so it is not kept. Constrain the jobs to one kind, such as"
                " with --slurm constraint=NAME, or start a new run there and compare the two runs"
            )
        names = changed(self._inputs, record.inputs)
        if names:
            raise UsageError(
                f"{', '.join(names)} changed while the run was under way, so {record.trial_id} is not kept:"
                " one ranking is of one model; undo the change and use --resume, or start a new run"
            )
