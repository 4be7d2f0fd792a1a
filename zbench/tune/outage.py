"""A shared study outlives its database: operations that failed for want of a connection are tried again."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from zbench.tune.storage import is_storage_failure

OUTAGE_SECONDS = 120.0
"""How long a worker waits for a database that is away, before it ends with what it has."""

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
_CONNECTION = frozenset({"OperationalError", "InterfaceError", "DisconnectionError", "AdminShutdown"})

T = TypeVar("T")


class Outages:
    """Tries operations again while the database is away. Each must be safe to repeat: it may have been done.

    on_wait: told once an outage that it is waited for.
    """

    def __init__(
        self, seconds: float = OUTAGE_SECONDS, on_wait: Callable[[str], None] = lambda _: None
    ) -> None:
        self._seconds, self._tell = seconds, on_wait
        self._last = float("-inf")

    def outlast(self, operation: Callable[[], T]) -> T:
        """Return what the operation returns; its last failure where the outage is too long."""
        began = time.monotonic()
        for pause in _pauses():
            try:
                return operation()
            except Exception as error:
                if not is_outage(error) or time.monotonic() - began > self._seconds:
                    raise
                if time.monotonic() - self._last > self._seconds:
                    self._tell(f"the study's database is away; trying again for {self._seconds:.0f} s")
                self.note()
            time.sleep(pause)
        raise AssertionError("the pauses never end")

    def note(self) -> None:
        """Remember that the database is away now."""
        self._last = time.monotonic()

    def was_within(self, seconds: float) -> bool:
        """Whether the database was away in the last so many seconds."""
        return time.monotonic() - self._last < seconds


def is_outage(error: Exception) -> bool:
    """Whether an operation failed because there was no connection, as its causes say."""
    if not is_storage_failure(error):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in _CONNECTION:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _pauses() -> Iterator[float]:
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]
