"""How a trial that takes turns waits for them: it warms up when it is started, and runs its timed steps in
turns.

No torch: the launcher imports this (`zbench.launch.turns` is its end of the sockets).
"""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

ASK, OVER, GO = b"?", b".", b"!"
"""The messages of a rank: a request for the next turn, the end of its timed steps; and the answer."""

_TURNS = 4

SHORTEST = 4
"""The fewest steps of a turn. The first one is not timed: the caches hold the data of other trials."""


def turn_lengths(steps: int) -> list[int]:
    """Return how many steps each turn of a trial has: a quarter of `steps`, and at least four."""
    turns = max(1, min(_TURNS, steps // SHORTEST))
    return [(steps * (turn + 1)) // turns - (steps * turn) // turns for turn in range(turns)]


class Turns(AbstractContextManager["Turns"]):
    """Waits for the turns of one process; does nothing in a trial that takes none. A context manager.

    Every rank sleeps on a socket of the launcher while other trials work; no rank waits in a collective. The
    launcher stops their processes meanwhile.
    """

    def __init__(self, path: str | None, world_size: int = 1) -> None:
        """path: the launcher's socket; if nothing listens there, the trial runs alone.

        world_size: the number of processes that share the turns.
        """
        self._prefix = world_size.to_bytes(2)
        self._launcher = None if path is None else _connected(path)

    @property
    def are_taken(self) -> bool:
        """Whether there are turns to wait for."""
        return self._launcher is not None

    def wait(self) -> None:
        """Hand over, and return when the next turn begins."""
        self._say(ASK)

    def over(self) -> None:
        """Report the end of the timed steps, and return when those of all other trials have ended, too."""
        self._say(OVER)

    def __exit__(self, *_: object) -> None:
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None

    def _say(self, request: bytes) -> None:
        """Tell the launcher, and return when it lets this process go on, or is gone."""
        if self._launcher is None:
            return
        try:
            self._launcher.sendall(self._prefix + request)
            has_answered = bool(self._launcher.recv(1))
        except OSError:
            has_answered = False
        if not has_answered:
            self.__exit__()


def _connected(path: str) -> socket.socket | None:
    launcher = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as place:
            launcher.connect(place)
    except OSError:
        launcher.close()
        return None
    return launcher


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield another name of a socket's path: those of sockets have at most 107 bytes."""
    directory, name = os.path.split(path)
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


def receive_request(rank: socket.socket) -> tuple[int, bytes]:
    """Return the world size and the request of a rank; no request where it is gone."""
    try:
        message = rank.recv(3, socket.MSG_WAITALL)
    except OSError:
        message = b""
    return int.from_bytes(message[:2]), message[2:]
