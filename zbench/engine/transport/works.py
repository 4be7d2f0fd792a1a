"""Works in flight, composed of others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zbench.engine.protocols import Work


class Done:
    """A work, or a copy, with nothing left to do, or that later work is ordered behind."""

    def wait(self) -> None:
        """Return at once."""

    def release(self) -> None:
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
    """A work, and a function to call before its result may be read."""

    work: Work
    finish: Callable[[], None]

    def wait(self) -> None:
        """Wait, then do what follows."""
        self.work.wait()
        self.finish()

    def is_completed(self) -> bool:
        return self.work.is_completed()
