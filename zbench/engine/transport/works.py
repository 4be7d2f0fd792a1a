"""Works in flight, put together from others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from zbench.engine.protocols import Work


class Done:
    """The work of a collective that has nothing left to do."""

    def wait(self) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        return True


@dataclass(slots=True)
class All:
    """Several works as one."""

    works: Sequence[Work]

    def wait(self) -> None:
        """Wait for each in turn."""
        for work in self.works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)


@dataclass(slots=True)
class Then:
    """A work, and what must follow before its result may be read."""

    work: Work
    finish: Callable[[], None]

    def wait(self) -> None:
        """Wait, then do what follows."""
        self.work.wait()
        self.finish()

    def is_completed(self) -> bool:
        return self.work.is_completed()


class Once:
    """A work that may be waited for from several threads; whoever comes first does it."""

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work
        self._lock = Lock()

    def wait(self) -> None:
        """Wait, unless somebody has."""
        with self._lock:
            if self._work is not None:
                self._work.wait()
                self._work = None

    def is_completed(self) -> bool:
        work = self._work
        return work is None or work.is_completed()
