"""An interleaved trial runs timed steps only in its own turns (see `zbench.launch.interleave`)."""

import math
import socket
import time
from collections.abc import Callable

from zbench.worker.job import ASK, OVER, RankJob

TURN_SECONDS = 0.2
"""How long a turn lasts at least; it ends before the next step begins."""


class Interleave:
    """One rank's part in taking turns; does nothing in a trial that takes none.

    Rank 0 talks to the referee, from its first timed step on. The other ranks wait for it, and it waits for
    them before it hands over, so that no rank works outside the trial's turn.
    """

    def __init__(self, job: RankJob | None, meet: Callable[[], object]) -> None:
        """meet: returns when all ranks have called it."""
        path = job.interleave if job is not None else None
        self._meet = meet if path is not None else None
        self._path = path if job is not None and job.rank == 0 else None
        self._referee: socket.socket | None = None
        self._since = -math.inf

    def wait(self) -> None:
        """Return when the next timed step may run: at once where the turn is still the trial's own."""
        if self._meet is None:
            return
        self._meet()
        if time.monotonic() - self._since >= TURN_SECONDS:
            self._tell(ASK)
            self._since = time.monotonic()
        self._meet()

    def over(self) -> None:
        """Say that no timed step follows, and return when no timed step of the other trial does, either."""
        if self._meet is None:
            return
        self._meet()
        self._tell(OVER)
        self._close()
        self._meet()

    def _tell(self, message: bytes) -> None:
        """Tell the referee, and return when it lets this trial go on; without a referee it runs alone."""
        if self._path is None:
            return
        try:
            if self._referee is None:
                self._referee = socket.socket(socket.AF_UNIX)
                self._referee.connect(self._path)
            self._referee.sendall(message)
            has_answered = bool(self._referee.recv(1))
        except OSError:
            has_answered = False
        if not has_answered:
            self._close()

    def _close(self) -> None:
        self._path = None
        if self._referee is not None:
            self._referee.close()
