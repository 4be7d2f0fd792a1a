"""The command line with fake workers: `python driver.py sweep FILE ...`, with faults if they are asked for.

The n-th open for writing, or the n-th fsync, fails or stalls; the clock jumps. In the environment,
`ZBENCH_TEST_FAULT=open:ENOSPC:3`, `fsync:STALL:2` or `clock:-86400:3` asks for such a fault.
"""

import builtins
import ctypes
import errno
import io
import itertools
import os
import pathlib
import platform
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "ZBENCH_TEST_FAULT"
STALL_SECONDS = 10.0
STRUCK = "ZBENCH_TEST_STRUCK"
"""The file that is made when the fault strikes."""
PACE = "ZBENCH_TEST_HEARTBEAT"
"""Seconds between the signs of life of a shared study's workers; who misses three is lost."""


REFUSED = "ZBENCH_TEST_REFUSED"
"""`sched_setaffinity:EPERM,...`: calls that the kernel refuses to this process and all that it starts."""
_NUMBERS = {
    "x86_64": {"sched_setaffinity": 203, "setpgid": 109, "flock": 73, "pidfd_open": 434},
    "aarch64": {"sched_setaffinity": 122, "setpgid": 154, "flock": 32, "pidfd_open": 434},
}


def refuse(text: str) -> None:
    """Have the kernel refuse calls, as a container's seccomp filter does."""
    numbers = _NUMBERS[platform.machine()]
    rules = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # load the number of the call
    for rule in text.split(","):
        name, error = rule.split(":")
        rules.append(struct.pack("HBBI", 0x15, 0, 1, numbers[name]))  # if it is this one
        rules.append(struct.pack("HBBI", 0x06, 0, 0, 0x50000 | getattr(errno, error)))  # fail
    code = ctypes.create_string_buffer(b"".join([*rules, struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)]))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules) + 1, ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP, a filter


def install(text: str) -> None:
    """Let the call that `text` names fail, stall or jump, once."""
    call, effect, number = text.split(":")
    calls = itertools.count(1)

    def strike(file: Any = None) -> None:
        if next(calls) != int(number):
            return
        _mark()
        if effect == "STALL":
            time.sleep(STALL_SECONDS)
        else:
            code = getattr(errno, effect)
            raise OSError(code, os.strerror(code), *filter(None, [file]))

    if call == "clock":
        _jump(int(effect), int(number))
    elif call == "fsync":
        _before_fsync(strike)
    else:
        _before_open(strike)


def _jump(seconds: int, number: int) -> None:
    real = time.time
    calls = itertools.count(1)

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


def quicken(pace: int) -> None:
    """Give lost workers up sooner than after the usual 45 seconds."""
    from zbench.tune.storage import DEFAULT_HEARTBEAT

    object.__setattr__(DEFAULT_HEARTBEAT, "pace", pace)
    object.__setattr__(DEFAULT_HEARTBEAT, "grace", 3 * pace)


if __name__ == "__main__":
    from zbench.cli.main import main
    from zbench.launch import executor

    sys.path.insert(0, str(Path(__file__).parent))
    executor.DEFAULT_TARGETS = executor.Targets(
        "fake_worker:run_rank",
        "fake_worker:run_reference",
        ("fake_worker",),
        machine="fake_worker:run_machine",
    )
    if REFUSED in os.environ:
        refuse(os.environ[REFUSED])
    if VARIABLE in os.environ:
        install(os.environ[VARIABLE])
    if PACE in os.environ:
        quicken(int(os.environ[PACE]))
    main()
