"""The user's own files that a trial reads, each with a digest: other files make another trial."""

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

_WHOLE = 64 << 20
_BLOCKS, _BLOCK = 64, 1 << 16
_INSTALLED = ("site-packages", "dist-packages")
_ZBENCH = Path(__file__).parents[1]


def digest(path: Path) -> str:
    """Return 16 hex digits of a file's contents; OSError where it cannot be read.

    Of a file beyond 64 MiB they are those of 64 places, of its size and of when it was changed last.
    """
    about = path.stat()
    found = hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        if about.st_size <= _WHOLE:
            found.update(file.read())
            return found.hexdigest()
        found.update(f"{about.st_size} {about.st_mtime_ns}".encode())
        for number in range(_BLOCKS):
            file.seek((about.st_size - _BLOCK) * number // (_BLOCKS - 1))
            found.update(file.read(_BLOCK))
    return found.hexdigest()


def inputs(named: Iterable[Path], base_dir: Path) -> dict[str, str]:
    """Return name -> digest of the files `named` and of the user's Python files that this process imported.

    A name is relative to `base_dir` if the file is inside.
    """
    found = {}
    for path in sorted({path.resolve() for path in [*named, *_own_modules()]}):
        name = str(path.relative_to(base) if path.is_relative_to(base := base_dir.resolve()) else path)
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
    standard = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or not file.endswith(".py") or name == "__main__":
            continue
        path = Path(file)
        if path.is_relative_to(_ZBENCH) or any(path.is_relative_to(place) for place in standard):
            continue
        if not any(part in _INSTALLED for part in path.parts):
            found.append(path)
    return found
