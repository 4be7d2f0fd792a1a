"""Runs the target of a process with its job, and returns the exit status."""

import contextlib
import importlib
import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path

from zbench.errors import UsageError
from zbench.job.failures import report


def call(target: str, job: Callable[[], object], error: tuple[str, int | str]) -> int:
    """Call `target` (`module:function`) with its job and return an exit status.

    error: where a failure is reported, as (result path, rank).
    """
    try:
        try:
            private_caches()
            module, name = target.split(":")
            getattr(importlib.import_module(module), name)(job())
        except SystemExit as request:
            if not isinstance(request.code, str):
                return request.code or 0
            raise RuntimeError(f"the program ended itself: {request.code}") from request
    except BaseException as escaped:
        traceback.print_exc()
        return report(escaped, *error)
    return 0


def private_caches() -> None:
    """Keep the compiled code of torch and Triton, which is loaded and run, in folders of this user alone.

    Torch's default is a fixed name in the temporary directory, which any other user could create first.
    UsageError for a folder that others own, or may read or write.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zbench" / "compiled"
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        folder = Path(os.environ.get(variable, ""))
        if not folder.name or any(part.startswith("torchinductor_") for part in folder.parts):  # torch's own
            folder = base / variable.split("_")[0].lower()
            os.environ[variable] = str(folder)
        with contextlib.suppress(OSError):  # where no folder can be made, whatever compiles says so
            for each in (base, folder) if folder.parent == base else (folder,):
                each.mkdir(0o700, parents=True, exist_ok=True)
        if not os.path.lexists(folder):
            continue
        about = folder.lstat()
        if (about.st_uid, stat.S_IMODE(about.st_mode)) != (os.geteuid(), 0o700):
            raise UsageError(
                f"{folder}: code that others put there would be run: expected a folder of mode 0700 that is"
                f" yours; remove it, or name another by {variable}"
            )
