"""Two sweeps that run at once take turns: one of them runs timed steps, the other one waits.

A machine's speed changes within seconds, so two samples taken one after the other differ more than two that
alternate several times a second. The referee is in the process that takes the samples. Each sweep gets a
socket of its own by an environment variable; rank 0 of each trial connects to it before its first timed step,
asks for a turn, asks again before the step that begins the next turn, and says when its timed steps are over
(`zbench.worker.interleave`). A version that does not know the variable never connects: it runs from start to
end while the other sweep waits, so the two samples are taken one after the other.
"""

import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from zbench.worker.job import ASK, OVER

VARIABLE = "ZBENCH_TURNS"
_GO = b"!"
_POLL_SECONDS = 0.1


def socket_path() -> str | None:
    """Return where trials of this process ask for their turns; None where they take none."""
    return os.environ.get(VARIABLE) or None


class InterleavedSweep(AbstractContextManager["InterleavedSweep"]):
    """Where the trials of one sweep ask for turns, one trial after another. A context manager.

    start: starts the sweep. has_ended: says whether it has ended. was_used: whether a trial ever came here.
    """

    def __init__(self, path: Path, start: Callable[[], None], has_ended: Callable[[], bool]) -> None:
        self._start, self._has_ended = start, has_ended
        self._trial: socket.socket | None = None
        self._message = b""
        self.was_used = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    @property
    def asks(self) -> bool:
        """Whether a trial waits here for a turn."""
        return self._message == ASK

    @property
    def is_over(self) -> bool:
        """Whether a trial waits here that has run all its timed steps."""
        return self._message == OVER

    def start(self) -> None:
        """Start the sweep, and return when its first trial waits here, or when the sweep has ended."""
        self._start()
        self._await_trial()

    def turn(self) -> bool:
        """Let the trial run timed steps until it asks again or is over; say whether it asks.

        A trial that ended otherwise has no more; then its sweep goes on to the first step of its next trial.
        """
        self._exchange(_GO)
        asks = self.asks
        if not asks and not self.is_over:
            self._await_trial()
        return asks

    def release(self) -> None:
        """Let a trial that is over end, and return when the sweep's next one waits here, or it has ended."""
        self._exchange(_GO)
        self._await_trial()

    def __exit__(self, *_: object) -> None:
        """Hold nobody any longer."""
        self._leave()
        self._listener.close()

    def _await_trial(self) -> None:
        """Return when a trial waits for its first turn, or the sweep has ended."""
        self._leave()
        while not self.asks and not self._has_ended():
            if select.select([self._listener], [], [], _POLL_SECONDS)[0]:
                self._leave()
                self._trial, _ = self._listener.accept()
                self._exchange(b"")
        self.was_used |= self.asks

    def _exchange(self, answer: bytes) -> None:
        """Send the trial an answer and keep its next message: an empty one where it has ended."""
        assert self._trial is not None, "a trial is here"
        self._message = b""
        with suppress(OSError):
            self._trial.sendall(answer)
            self._message = self._trial.recv(1)

    def _leave(self) -> None:
        self._message = b""
        if self._trial is not None:
            self._trial.close()
            self._trial = None


def interleave(sweeps: Sequence[InterleavedSweep]) -> None:
    """Run sweeps to their ends. At any time one of them works; the others wait at their gates.

    They start one after another, so that no start disturbs another's timed steps. Then the trials that wait
    take turns until the timed steps of all are over, and each sweep goes on to its next trial.
    """
    for sweep in sweeps:
        sweep.start()
    while playing := [sweep for sweep in sweeps if sweep.asks]:
        while playing:
            playing = [sweep for sweep in playing if sweep.turn()]
        for sweep in sweeps:
            if sweep.is_over:
                sweep.release()
