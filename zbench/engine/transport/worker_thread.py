"""A thread that does collective tasks in the order in which they were given."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread

_SECONDS_TO_END = 10.0


@dataclass(slots=True)
class QueuedWork:
    """A work that a thread does."""

    run: Callable[[], object] | None
    error: BaseException | None = None
    _done: Event = field(default_factory=Event)

    def do(self) -> None:
        """Do it; called once."""
        assert self.run is not None
        try:
            self.run()
        except BaseException as error:
            self.error = error
        self.run = None  # the memory that it held on to
        self._done.set()

    def wait(self) -> None:
        """Return when it is done; raise what it raised. An interrupt is raised then, too: till then the
        thread and its peers use the memory.
        """
        try:
            self._done.wait()
        except BaseException:
            self._done.wait()
            raise
        if self.error is not None:
            raise self.error

    def is_completed(self) -> bool:
        return self._done.is_set()


class WorkerThread:
    """Sleeps while there is nothing to do; lives until `close`, or until nobody knows it any more."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[QueuedWork | None] = SimpleQueue()
        self._thread = Thread(target=_work, args=(self._tasks,), name=f"zbench {name}", daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[], object]) -> QueuedWork:
        """Have the thread call `run` after everything that was submitted before."""
        task = QueuedWork(run)
        self._tasks.put(task)
        return task

    def close(self) -> None:
        """Let the thread end when it has done what it was given; a peer that is gone cannot hold it up."""
        self._tasks.put(None)
        self._thread.join(_SECONDS_TO_END)

    def __del__(self) -> None:
        with suppress(AttributeError):
            self._tasks.put(None)


def _work(tasks: "SimpleQueue[QueuedWork | None]") -> None:
    while (task := tasks.get()) is not None:
        task.do()
        del task
