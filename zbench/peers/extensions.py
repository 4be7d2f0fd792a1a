"""Locks that killed compilations leave behind, for which torch's extension builds wait forever."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def remove_abandoned_locks(variables: Mapping[str, str] = os.environ) -> list[Path]:
    """Remove the locks of torch's extension builds that no process holds any more; return them.

    variables: the environment of the process that builds; it says where extensions are built. A builder keeps
    its lock open until it is done (`torch.utils.file_baton`). On a system without /proc nothing is removed.
    """
    locks = [path.resolve() for path in _root(variables).glob("**/lock") if path.is_file()]
    if not locks or not Path("/proc/self/fd").is_dir():
        return []
    held = _open_files()
    abandoned = [path for path in locks if str(path) not in held]
    for path in abandoned:
        path.unlink(missing_ok=True)
    return abandoned


def _root(variables: Mapping[str, str]) -> Path:
    given = variables.get("TORCH_EXTENSIONS_DIR")
    if given:
        return Path(given)
    base = variables.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "torch_extensions"


def _open_files() -> set[str]:
    """Return the paths of all files that this user's processes have open."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or one that has just ended
            for descriptor in os.listdir(process / "fd"):
                with suppress(OSError):
                    found.add(os.readlink(process / "fd" / descriptor))
    return found
