"""Participants run at the same time and take turns: one of them works while the others wait.

A machine's speed changes within seconds. So configurations that are timed one after the other differ more
than those that alternate several times a second. Every rank of a participant connects to a socket, its gate.
It asks there for a turn before its first timed step and before each later turn, and reports the end of its
timed steps. While it waits, it sleeps on that socket (`zbench.job.turns`), and its process is stopped. Only
one participant at a time starts, takes a turn or ends.

Participants are the repeats of one sweep, or two sweeps of different versions (`zbench compare --paired`).
Such a sweep gets its gate's path in an environment variable, and its launcher asks there for its trials'
turns. A version that has another protocol, or none, runs from start to end while the other sweep waits; the
two samples are then taken one after the other.
"""

import os
import random
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self, TypeVar

from zbench.job.turns import ASK, GO, receive_request, short_path

_VARIABLE, _PROTOCOL = "ZBENCH_TURNS", "2:"


def paired_path() -> str | None:
    """Return the gate where this process's trials take turns with another sweep's, or None."""
    value = os.environ.get(_VARIABLE, "")
    return value.removeprefix(_PROTOCOL) if value.startswith(_PROTOCOL) else None


def paired_environment(environment: Mapping[str, str], gate: "TurnGate | None") -> dict[str, str]:
    """Return the environment of a sweep whose trials take their turns at `gate`, if it has one."""
    variables = {key: value for key, value in environment.items() if key != _VARIABLE}
    return variables if gate is None else variables | {_VARIABLE: f"{_PROTOCOL}{gate.path}"}


class TurnGate(AbstractContextManager["TurnGate"]):
    """The socket where the ranks of one participant wait for its turns. A context manager; its end frees
    them.

    was_used: whether the ranks ever connected.
    """

    def __init__(self, path: Path) -> None:
        """path: of the socket that the ranks connect to."""
        self.path, self.was_used = path, False
        self._ranks: dict[socket.socket, bytes] = {}
        self._world_size = 0
        self._listener = socket.socket(socket.AF_UNIX)
        with short_path(str(path)) as place:
            self._listener.bind(place)
        self._listener.listen(socket.SOMAXCONN)

    @property
    def all_wait(self) -> bool:
        """Whether every rank waits here."""
        return 0 < self._world_size == len(self._ranks) and all(self._ranks.values())

    @property
    def asks(self) -> bool:
        """Whether every rank waits here for a turn."""
        return self.all_wait and ASK in self._ranks.values()

    def waitable(self) -> Sequence[socket.socket]:
        """Return the sockets that become readable when a rank connects, asks or leaves."""
        return [self._listener, *self._ranks]

    def receive(self, ready: Collection[object]) -> None:
        """Read the messages of the ranks; ready: the readable sockets of `waitable()`."""
        for connection in [one for one in self._ranks if one in ready]:
            world_size, request = receive_request(connection)
            if request:
                self._world_size, self._ranks[connection] = world_size, request
            else:
                del self._ranks[connection]
                connection.close()
        if self._listener in ready:
            self._ranks[self._listener.accept()[0]] = b""
            self.was_used = True

    def go(self) -> None:
        """Let all ranks that wait here continue."""
        for connection, request in self._ranks.items():
            if request:
                self._ranks[connection] = b""
                with suppress(OSError):
                    connection.sendall(GO)

    def __exit__(self, *_: object) -> None:
        """Let all ranks continue, and close the socket."""
        for connection in [self._listener, *self._ranks]:
            connection.close()
        self._ranks.clear()


class Participant(ABC):
    """A task that works in its turns and waits at its gate between them; without a gate it never waits.

    A context manager: at its end the task's processes have ended.
    """

    gate: TurnGate | None

    @abstractmethod
    def advance(self) -> None:
        """Start or continue it; return when it waits at its gate or has ended."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """End its processes."""

    @property
    def waits(self) -> bool:
        """Whether it waits at its gate."""
        return self.gate is not None and self.gate.all_wait

    @property
    def asks(self) -> bool:
        """Whether it waits for a turn."""
        return self.gate is not None and self.gate.asks


AnyParticipant = TypeVar("AnyParticipant", bound=Participant)


def run_heat(participants: Sequence[AnyParticipant], lot: random.Random) -> Iterator[AnyParticipant]:
    """Run participants to their ends, one at a time. Yields each when it has ended.

    They start one after another. Those that ask for turns then take them, in balanced random orders drawn by
    `lot`, until none asks any more. Each then continues to its end, one by one; so does one that never asked.
    A sweep continues to its next trial instead, which asks again.
    """
    for participant in participants:
        yield from _advanced(participant)
    while any(participant.waits for participant in participants):
        orders = balanced_orders(len(participants), lot)
        while any(participant.asks for participant in participants):
            for number in next(orders):
                if participants[number].asks:
                    yield from _advanced(participants[number])
        for participant in participants:
            if participant.waits:
                yield from _advanced(participant)


def _advanced(participant: AnyParticipant) -> Iterator[AnyParticipant]:
    """Let a participant go on; yield it if it has ended."""
    participant.advance()
    if not participant.waits:
        yield participant


def balanced_orders(count: int, lot: random.Random) -> Iterator[list[int]]:
    """Yield orders of 0 to count - 1 without end, by Williams' design with labels and rows drawn by lot.

    Within `count` successive orders (2 x count where that is odd) each number directly follows every other
    one equally often, and stands at each place equally often. So neither a predecessor nor a drift favours
    one. (Williams, "Experimental designs balanced for the estimation of residual effects of treatments",
    Australian Journal of Scientific Research A 2, 1949).
    """
    labels = list(range(count))
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    while True:
        lot.shuffle(labels)
        rows = [[labels[(start + step) % count] for step in zigzag] for start in range(count)]
        lot.shuffle(rows)
        for row in rows:
            yield row
            if count % 2 or count == 2:
                yield row[::-1]
