"""Runs the target of a process with its job, and returns the exit status."""

import importlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from zbench.errors import UsageError
from zbench.job.failures import report
from zbench.private import private_cache, private_directory
from zbench.scratch import scratch_folder


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

    Torch's default is a fixed name in the temporary directory, which any other user could create first. Where
    the cache is not this user's alone, the code is kept in this process's own temporary directory, which ends
    with the trial. UsageError for a folder that the user has named, and that others can reach.
    """
    os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # torch keeps those elsewhere
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        named = Path(os.environ.get(variable, ""))
        if named.name and not any(part.startswith("torchinductor_") for part in named.parts):  # torch's own
            private_directory(named, f"remove it, or name another by {variable}")
            continue
        kind = variable.split("_")[0].lower()
        try:
            folder = private_cache("compiled", kind)
        except UsageError:
            folder = scratch_folder()
        os.environ[variable] = str(folder)
