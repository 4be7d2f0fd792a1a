"""Works in flight: composed of others, or run by a worker thread in the order of submission."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread

import torch

from zbench.engine.protocols import Work

_SECONDS_TO_END = 10.0


class Done:
    """A work, or a copy, with nothing left to do, or that later work is ordered behind."""

    def wait(self) -> None:
        """Return at once."""

    def release(self) -> None:
        """Return at once."""

    def behind(self) -> AbstractContextManager[object]:
        """Return a context that changes nothing."""
        return nullcontext()

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
    """A work, and a function to call, once, before its result may be read."""

    work: Work
    finish: Callable[[], object] | None

    def wait(self) -> None:
        """Wait, then do what follows."""
        self.work.wait()
        finish, self.finish = self.finish, None
        if finish is not None:
            finish()

    def is_completed(self) -> bool:
        return self.work.is_completed()


class StreamEnd:
    """The present end of a stream. Any thread may wait for it, also one that has chosen no device: CUDA would
    use the first of the machine.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """The host waits asleep: a core that spins would be the optimizer threads'."""
        self._device = stream.device
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def query(self) -> bool:
        """Return whether the device has got there."""
        with torch.cuda.device(self._device):
            return bool(self._event.query())  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Have the host wait until the device has got there."""
        with torch.cuda.device(self._device):
            self._event.synchronize()

    def order(self) -> None:
        """Order the current stream of its device behind it."""
        torch.cuda.current_stream(self._device).wait_event(self._event)


class OnStream(StreamEnd):
    """What follows a work on a stream of its own: other streams wait for it, the host does not."""

    def __init__(self, stream: torch.cuda.Stream, work: Work, run: Callable[[], object]) -> None:
        with torch.cuda.stream(stream):
            work.wait()
            run()
        super().__init__(stream)

    wait, is_completed = StreamEnd.order, StreamEnd.query


@dataclass(slots=True)
class QueuedWork:
    """A function that a worker thread runs."""

    run: Callable[[], object] | None
    error: BaseException | None = None
    _done: Event = field(default_factory=Event)

    def do(self) -> None:
        """Run it, once."""
        assert self.run is not None
        try:
            self.run()
        except BaseException as error:
            self.error = error
        self.run = None  # the memory that it held on to
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Count it as done, with this error."""
        self.error = error
        self._done.set()

    def wait(self) -> None:
        """Return when it is done, or raise its error. An interrupt is raised only then: until then the thread
        and other ranks use the memory.
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
    """Sleeps while its queue is empty; ends at `close`, or when nothing refers to it any more."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[QueuedWork | None] = SimpleQueue()
        self._submitted: deque[QueuedWork] = deque()
        self._thread = Thread(target=_work, args=(self._tasks,), name=f"zbench {name}", daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[], object]) -> QueuedWork:
        """Queue `run` behind everything that was submitted before."""
        task = QueuedWork(run)
        while self._submitted and self._submitted[0].is_completed():
            self._submitted.popleft()
        self._submitted.append(task)
        self._tasks.put(task)
        return task

    def fail(self, error: Exception) -> None:
        """Wake whoever waits for what was submitted, with this error; the thread itself may never end."""
        for task in list(self._submitted):
            if not task.is_completed():
                task.fail(error)

    def close(self, timeout: float = _SECONDS_TO_END) -> bool:
        """End the thread after what is queued; return whether it has ended in `timeout` seconds.

        It may not, because another rank may be gone.
        """
        self._tasks.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def __del__(self) -> None:
        with suppress(AttributeError):
            self._tasks.put(None)


def _work(tasks: "SimpleQueue[QueuedWork | None]") -> None:
    while (task := tasks.get()) is not None:
        task.do()
        del task
