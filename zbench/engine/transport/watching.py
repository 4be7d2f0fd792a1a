"""Waits for collectives that are watched: a thread finds out what a rank that waits cannot."""

import weakref
from dataclasses import dataclass
from threading import Event, Thread

from zbench.engine.protocols import Work
from zbench.engine.transport import agreement as agreements
from zbench.engine.transport.agreement import Agreement, Call, OtherCallError


@dataclass(slots=True)
class WatchedWork:
    """A collective's work; while this rank waits for it, `look` can report which call it waits for."""

    work: Work
    call: Call
    agreement: Agreement

    def wait(self) -> None:
        """Return when its result may be read."""
        with self.agreement.waits_for(self.call):
            try:
                self.work.wait()
            except OtherCallError as error:
                raise self.agreement.failed(self.call, error) from error

    def is_completed(self) -> bool:
        return self.work.is_completed()


class Watch:
    """A thread that calls `look` while this rank waits, until `close` or until the agreement is freed."""

    def __init__(self, agreement: Agreement) -> None:
        self._stop = Event()
        arguments = weakref.ref(agreement), self._stop
        Thread(target=_watch, args=arguments, name="zbench agreement", daemon=True).start()

    def close(self) -> None:
        """Let the thread end."""
        self._stop.set()

    __del__ = close


def _watch(reference: "weakref.ref[Agreement]", stop: Event) -> None:
    has_entered = False
    while not stop.wait(agreements.PATIENCE / 5):
        agreement = reference()
        if agreement is None:
            return
        if agreement.device is not None and not has_entered:
            agreement.device.enter()
            has_entered = True
        if agreement.neighbour is not None and (rank := agreement.neighbour.gone()) is not None:
            agreement.tell_gone(rank)
        if agreement.look(agreements.PATIENCE):
            return
        del agreement
