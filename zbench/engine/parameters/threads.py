"""Threads that share an engine: calls that train take turns, and a thread has gathered weights alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock, get_ident

import torch

from zbench.engine.transport.rank_messages import OwnProcess
from zbench.errors import UsageError


def in_backward() -> bool:
    """Return whether this thread runs a backward: a hook on the graph, or a block that is computed again."""
    return torch._C._current_graph_task_id() >= 0


class Turns:
    """The calls of one engine. A call waits for the call of another thread. Within a backward or a step,
    another call that trains is refused, as it would have to wait for itself.
    """

    def __init__(self, process: OwnProcess) -> None:
        self._process, self._lock = process, RLock()
        self._trains = 0  # the thread that runs a backward or a step

    @contextmanager
    def training(self) -> Iterator[None]:
        """Return a context for a call that changes the step; UsageError within another such call."""
        if self._is_within():
            raise UsageError(
                "expected engine.backward, step and zero_grad one after the other, got a call within another,"
                " as from a hook; call it when the first has returned"
            )
        with self._lock:
            self._trains = get_ident()
            try:
                yield
            finally:
                self._trains = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context for a call that reads or replaces the state."""
        if self._is_within() or self._process.is_fork:  # a fork has no thread that would free the lock
            yield
            return
        with self._lock:
            yield

    def _is_within(self) -> bool:
        """Return whether a call that trains, of this thread or by way of autograd's, has led here."""
        return self._trains == get_ident() or (self._trains != 0 and in_backward())


class SoleUser:
    """A context that one thread at a time may enter, any number of times; UsageError for another thread.

    If autograd has threads of its own (`has_threads`), they act for the thread that has called backward.
    """

    def __init__(self, *, has_threads: bool) -> None:
        self._has_threads = has_threads
        self._lock = Lock()
        self._thread = self._depth = 0

    def __enter__(self) -> None:
        if self._has_threads and in_backward():
            return
        thread = get_ident()
        with self._lock:
            if self._depth and self._thread != thread:
                raise UsageError(
                    "another thread uses the model now: at zero_stage 3 weights are gathered for one thread."
                    " Let the other thread end its forward and backward first, or use zero_stage 2"
                )
            self._thread = thread
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if not (self._has_threads and in_backward()):
            with self._lock:
                self._depth -= 1
