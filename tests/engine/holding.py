"""Bytes that torch holds in this process, to the byte."""

import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from zbench.measure.shim import SHIM


def live() -> int:
    """Return the bytes that torch holds when nothing is left in cycles."""
    gc.collect()
    return settled()


def settled() -> int:
    """Return the bytes that torch holds now, once the process groups' threads sleep: until one does, it may
    still have to give back what it sent.
    """
    assert SHIM is not None
    quiet = 0
    while quiet < 3:
        time.sleep(0.001)
        quiet = quiet + 1 if _others_sleep() else 0
    return SHIM.zbench_memory_live_bytes()


def _others_sleep() -> bool:
    """Tell whether every thread of this process but the caller waits; one without a core runs."""
    others = {*Path("/proc/self/task").iterdir()} - {Path(f"/proc/self/task/{threading.get_native_id()}")}
    with suppress(OSError):  # one ended meanwhile
        return all(") S " in (task / "stat").read_text() for task in others)
    return False


def peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes that were held above those before, while `call` ran."""
    assert SHIM is not None
    before = live()
    SHIM.zbench_memory_reset_peak()
    call()
    return SHIM.zbench_memory_peak_bytes() - before
