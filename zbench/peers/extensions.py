"""Removes locks of killed compilations, for which torch's extension builds would wait forever."""

import os
from collections.abc import Mapping
from pathlib import Path

import psutil


def remove_abandoned_locks(variables: Mapping[str, str] = os.environ) -> list[Path]:
    """Remove the locks of torch's extension builds that no process has open. Return their paths.

    variables: environment variables of the process that builds, which set the build directory. A builder
    keeps its lock file open until it is done (`torch.utils.file_baton`).
    """
    locks = [path.resolve() for path in _root(variables).glob("**/lock") if path.is_file()]
    if not locks:
        return []
    processes = psutil.process_iter(["open_files"])  # None: another user's process, or it has ended
    held = {file.path for process in processes for file in process.info["open_files"] or ()}
    abandoned = [path for path in locks if str(path) not in held]
    for path in abandoned:
        path.unlink(missing_ok=True)
    return abandoned


def _root(variables: Mapping[str, str]) -> Path:
    directory = variables.get("TORCH_EXTENSIONS_DIR")
    if directory:
        return Path(directory)
    base = variables.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "torch_extensions"
