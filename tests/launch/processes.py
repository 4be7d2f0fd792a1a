"""Waiting for files and for the end of processes, with a limit."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil

MARK = "ZBENCH_TEST_MARK"


def until(true: Callable[[], bool], event: str, seconds: float = 600.0, pause: float = 0.005) -> None:
    """Return as soon as `true()`; AssertionError saying `event` never came about.

    A question that takes long is asked less often: what is waited for needs the processor, too.
    """
    give_up = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if true():
            return
        now = time.monotonic()
        assert now < give_up, f"waited in vain: {event}"
        time.sleep(max(pause, 4 * (now - asked)))


def text_of(path: Path) -> str:
    """Return a file's text once there is some."""
    until(lambda: path.exists() and bool(path.read_text()), f"{path} is written")
    return path.read_text()


def gone(pid: int) -> bool:
    """Whether a process has ended; one that its parent has not reaped yet counts as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that inherited `mark` in their environment: a sweep's, all of them."""
    living = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def hurried_clock(is_hurried: Callable[[], bool]) -> SimpleNamespace:
    """Return a clock in the place of `time`: once it is hurried, each look finds it two seconds later."""
    ahead = 0.0

    def monotonic() -> float:
        nonlocal ahead
        ahead += 2.0 * is_hurried()
        return time.monotonic() + ahead

    return SimpleNamespace(monotonic=monotonic)
