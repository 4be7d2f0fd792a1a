"""Faults in this process: the n-th open for writing, or the n-th fsync, fails or stalls; the clock jumps.

`ZBENCH_TEST_FAULT=open:ENOSPC:3`, `fsync:STALL:2` or `clock:-86400:3` in the environment of `driver.py` asks
for one.
"""

import builtins
import errno
import io
import itertools
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

VARIABLE = "ZBENCH_TEST_FAULT"
STALL_SECONDS = 10.0
STRUCK = "ZBENCH_TEST_STRUCK"
"""The file that is made when the fault strikes."""
PACE = "ZBENCH_TEST_HEARTBEAT"
"""Seconds between the signs of life of a shared study's workers; who misses three is lost."""


def install(text: str) -> None:
    """Let the call that `text` names fail, stall or jump, once."""
    call, what, number = text.split(":")
    calls = itertools.count(1)

    def strike(file: Any = None) -> None:
        if next(calls) != int(number):
            return
        _mark()
        if what == "STALL":
            time.sleep(STALL_SECONDS)
        else:
            code = getattr(errno, what)
            raise OSError(code, os.strerror(code), *filter(None, [file]))

    if call == "clock":
        _jump(int(what), int(number))
    elif call == "fsync":
        _before_fsync(strike)
    else:
        _before_open(strike)


def _jump(seconds: int, number: int) -> None:
    real, calls = time.time, itertools.count(1)

    def jumping() -> float:
        if next(calls) < number:
            return real()
        _mark()
        return real() + seconds

    time.time = jumping


def _mark() -> None:
    """Say that the fault has struck, by a call that none of them fails."""
    if (path := os.environ.get(STRUCK)) is not None:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _before_fsync(strike: Callable[[], None]) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        strike()
        real(fd)

    os.fsync = fsync


def _before_open(strike: Callable[[str], None]) -> None:
    real = io.open

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if set(mode) & set("wax+") and not str(file).startswith("/dev/"):
            strike(str(file))
        return real(file, mode, *rest, **more)

    builtins.open = io.open = pathlib.io.open = opened  # type: ignore[attr-defined]
