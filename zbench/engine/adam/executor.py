"""AdamExecutor: native threads that update parameters while Python, and autograd, do something else."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from zbench import _native
from zbench._native import Gate, UpdateFailed, UpdateTimeout
from zbench.engine.adam.checks import check_grad_scale, check_tasks
from zbench.engine.adam.contract import AdamTask
from zbench.engine.adam.plan import build_plan, is_simulated, task_tensors

__all__ = ["AdamExecutor", "Completion", "Gate", "UpdateFailed", "UpdateTimeout"]


@dataclass(frozen=True, slots=True)
class Completion:
    """When an update ran, in nanoseconds of time.monotonic_ns(), and its count of non-finite parameters."""

    start_ns: int
    end_ns: int
    nonfinite: int


class AdamExecutor:
    """A pool of native worker threads; each update returns the bits that NativeAdam returns.

    Updates begin in the order of submission, except that those whose gate is not open yet are passed over. A
    large update is shared by all workers. Workers take no part in OpenMP and never hold the GIL.

    threads: how many. affinity: the processors that they run on, one each in turn; empty leaves it to the
    system. ValueError for fewer than one thread or a processor that this process may not use.
    """

    def __init__(self, threads: int, affinity: Sequence[int] = ()) -> None:
        self._native = _native.Executor(threads, list(affinity))
        self._tasks: dict[int, Sequence[AdamTask]] = {}  # keeps the tensors alive until they are waited for
        self._simulated: dict[int, Completion] = {}

    def submit(self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0, after: Gate | None = None) -> int:
        """Queue one update and return its ticket.

        after: the update begins only when this gate is open, and fails if the gate does (`Gate.open()` and
        `Gate.fail(why)` may be called from any thread). The tasks' tensors must not be touched until the
        ticket has been waited for. ValueError as AdamBackend.update; UpdateFailed if the executor is
        closed.
        """
        check_grad_scale(grad_scale)
        check_tasks(tasks, "cpu")
        if is_simulated(tensor for task in tasks for tensor in task_tensors(task)):
            ticket = -1 - len(self._simulated)
            self._simulated[ticket] = Completion(time.monotonic_ns(), time.monotonic_ns(), 0)
            return ticket
        ticket = self._native.submit(build_plan(tasks), grad_scale, after)
        self._tasks[ticket] = list(tasks)
        return ticket

    def wait(self, ticket: int, timeout: float | None = None) -> Completion:
        """Block until the update is done, without the GIL, and forget it; Ctrl-C interrupts.

        timeout: seconds; None waits for as long as it takes. UpdateFailed (a RuntimeError) if it will never
        run; UpdateTimeout (a TimeoutError) says where it stands, and leaves it to be waited for again.
        """
        if ticket in self._simulated:
            return self._simulated.pop(ticket)
        try:
            completion = Completion(*self._native.wait(ticket, timeout))
        except UpdateFailed:
            self._tasks.pop(ticket, None)
            raise
        self._tasks.pop(ticket, None)
        return completion

    def done(self, ticket: int) -> bool:
        """Tell whether `wait` would return, or raise UpdateFailed, at once."""
        return ticket in self._simulated or self._native.done(ticket)

    def cancel(self, ticket: int) -> bool:
        """Return True if the update had not begun and never will; waiting for it then raises UpdateFailed."""
        return ticket not in self._simulated and self._native.cancel(ticket)

    def close(self) -> None:
        """Let begun updates finish, fail the others, end the threads. May be called again."""
        self._native.close()
        self._tasks.clear()
