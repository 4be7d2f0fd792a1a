"""Disk faults in this process: the n-th open for writing, or the n-th fsync, fails with an errno.

`ZBENCH_TEST_FAULT=open:ENOSPC:3` in the environment of `driver.py` asks for one.
"""

import builtins
import errno
import io
import itertools
import os
import pathlib
from typing import Any

VARIABLE = "ZBENCH_TEST_FAULT"


def install(text: str) -> None:
    """Let the call that `text` names fail, once."""
    call, name, number = text.split(":")
    calls = itertools.count(1)
    code = getattr(errno, name)

    def fails() -> bool:
        return next(calls) == int(number)

    if call == "fsync":
        real_fsync = os.fsync

        def fsync(fd: int) -> None:
            if fails():
                raise OSError(code, os.strerror(code))
            real_fsync(fd)

        os.fsync = fsync
        return
    real_open = io.open

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if set(mode) & set("wax+") and not str(file).startswith("/dev/") and fails():
            raise OSError(code, os.strerror(code), str(file))
        return real_open(file, mode, *rest, **more)

    builtins.open = io.open = pathlib.io.open = opened  # type: ignore[attr-defined]
