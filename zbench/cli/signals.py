"""SIGTERM and SIGHUP (a scheduler's preemption, a closed terminal) end a command as Ctrl-C does."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end; handled wherever Ctrl-C is."""


@contextlib.contextmanager
def as_interruption() -> Iterator[None]:
    """Raise TerminatedError in the body at the first of these signals; later ones do not disturb its end.

    A signal that the caller ignores (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = [number for number in _SIGNALS if before[number] is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGHUP:
            _leave_terminal()
        raise TerminatedError(f"ended by {signal.Signals(number).name}")

    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _leave_terminal() -> None:
    """Send output to nowhere where it went to the terminal: a terminal that has hung up refuses it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if stream.isatty():
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
