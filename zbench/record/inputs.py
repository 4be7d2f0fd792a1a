"""The user's own files that a trial reads, each with a digest: other files make another trial."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

_HASH = partial(hashlib.blake2b, digest_size=8)
_WHOLE = 64 << 20
_BLOCKS, _BLOCK = 64, 1 << 16
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_KNOWN = tuple(
    f"{place}{os.sep}"
    for place in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
)
"""Folders of Python's and zbench's files, as text: comparing paths takes 50 ms where torch is imported."""


def digest(path: Path) -> str:
    """Return 16 hex digits of a file's contents; OSError where it cannot be read.

    Of a file beyond 64 MiB they are those of 64 places, of its size and of when it was changed last.
    """
    about = path.stat()
    with path.open("rb") as file:
        if about.st_size <= _WHOLE:  # in pieces: what a trial holds at its peak is a figure of it
            return hashlib.file_digest(file, _HASH).hexdigest()
        found = _HASH(f"{about.st_size} {about.st_mtime_ns}".encode())
        for number in range(_BLOCKS):
            file.seek((about.st_size - _BLOCK) * number // (_BLOCKS - 1))
            found.update(file.read(_BLOCK))
        return found.hexdigest()


def inputs(named: Iterable[Path], base_dir: Path) -> dict[str, str]:
    """Return name -> digest of the files `named` and of the user's Python files that this process imported.

    A name is relative to `base_dir` if the file is inside.
    """
    base, found = base_dir.resolve(), {}
    for path in sorted({path.resolve() for path in [*named, *_own_modules()]}):
        name = str(path.relative_to(base) if path.is_relative_to(base) else path)
        try:
            found[name] = digest(path)
        except OSError:
            found[name] = "not there any more"
    return found


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names that both have, with other contents."""
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def _own_modules() -> list[Path]:
    """Return the source files of imported modules that are neither Python's, nor installed, nor zbench's."""
    modules = dict(sys.modules)
    named = {name: _file(module) for name, module in modules.items() if name != "__main__"}
    own = {name: file for name, file in named.items() if file.endswith(".py") and _is_own(file)}
    packages = {name: _file(modules.get(name.partition(".")[0])) for name in own}  # torch writes modules, too
    return [Path(file) for name, file in own.items() if not packages[name] or _is_own(packages[name])]


def _file(module: object) -> str:
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else ""


def _is_own(file: str) -> bool:
    return not file.startswith(_KNOWN) and not any(part in file for part in _INSTALLED)
