"""What all executors of this machine have in common: one batch at a time, whose tasks take turns."""

import itertools
from abc import abstractmethod
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Generic

from zbench.errors import ZbenchError
from zbench.job.progress import Watch
from zbench.launch.executor import Attempt, Batch, Executor, OnLine, Task
from zbench.launch.turns import AnyParticipant, run_heat
from zbench.record.record import Failure

Ends = Generator[tuple[Task, Attempt]]
"""The ends of the tasks of a batch. Closing it ends all processes that are left of them."""


@dataclass(slots=True)
class _Begun:
    """The batch that runs. remaining_tasks: how many have not ended."""

    handle: int
    ends: Ends
    remaining_tasks: int


class HeatExecutor(Executor, Generic[AnyParticipant]):
    """Runs one batch after another, the tasks of a batch in turns. See `executor.Executor`."""

    takes_turns = True

    def __init__(self) -> None:
        self._handles = itertools.count()
        self._queue: dict[int, tuple[Batch, OnLine]] = {}
        self._begun: _Begun | None = None

    @abstractmethod
    def participant(self, task: Task, stack: ExitStack, watch: Watch, *, among: int) -> AnyParticipant:
        """Return what runs a task, not yet started; `stack` ends it and removes its files.

        among: how many tasks take turns with one another. ZbenchError where the task can never start.
        """

    @abstractmethod
    def attempt(self, task: Task, participant: AnyParticipant) -> Attempt:
        """Return how a task ended."""

    def submit(self, batch: Batch, on_line: OnLine) -> int:
        """Put a batch at the end of the queue; see `executor.Executor`."""
        handle = next(self._handles)
        self._queue[handle] = batch, on_line
        return handle

    def next_ended(self) -> tuple[int, Task, Attempt]:
        """Let the batch go on that has begun, or begin the next one; return the next task that has ended."""
        if self._begun is None:
            handle = next(iter(self._queue))
            batch, on_line = self._queue.pop(handle)
            self._begun = _Begun(handle, self._run(batch, on_line), len(batch.tasks))
        begun = self._begun
        task, attempt = next(begun.ends)
        begun.remaining_tasks -= 1
        if begun.remaining_tasks == 0:
            self._end_batch()
        return begun.handle, task, attempt

    def withdraw(self, handle: int) -> bool:
        """Take a batch out of the queue; see `executor.Executor`."""
        return self._queue.pop(handle, None) is not None

    def close(self) -> None:
        """End what has begun, with its processes and files."""
        self._end_batch()
        self._queue.clear()

    def _run(self, batch: Batch, on_line: OnLine) -> Ends:
        """Run the tasks of a batch, in turns if there are several, and yield each as it ends."""
        with ExitStack() as stack:
            tasks: dict[AnyParticipant, Task] = {}
            for task in batch.tasks:
                try:
                    one = self.participant(task, stack, partial(on_line, task), among=len(batch.tasks))
                except ZbenchError as error:
                    yield task, Attempt("crashed", Failure("crashed", str(error)))
                else:
                    tasks[one] = task
            for one in run_heat(list(tasks), batch.lot):
                yield tasks[one], self.attempt(tasks[one], one)

    def _end_batch(self) -> None:
        if self._begun is not None:
            self._begun.ends.close()
        self._begun = None
