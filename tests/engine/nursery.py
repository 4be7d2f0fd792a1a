"""The process that ranks are forked from: a fork of the test process, taken before any test computes."""

import gc
import importlib
import logging
import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import pytest

PRELOAD = [
    "zbench.measure.shim",  # before torch, so that cases can count allocated bytes
    *(
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "torch._inductor.compile_fx",
        "zbench.engine",
        "zbench.engine.compiled.compile",
    ),
]
"""What every rank needs; a test process that collected the engine's tests has most of it."""

Serve = Callable[[Connection, int, int, str], None]


def without_guard_timing(patch: pytest.MonkeyPatch | None = None) -> None:
    """Have dynamo not time the guards of what it compiles: it empties the caches first, which takes 50 ms.

    And not write a trace of all it does, which nobody reads.
    """
    patch = patch or pytest.MonkeyPatch()
    patch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0, raising=False)
    patch.setattr(logging.getLogger("torch.__trace"), "handlers", [])


class Nursery:
    """A fork of this process, which must not have computed anything: else its children may hang in OpenMP.

    It ends with this process, and the ranks end when their pipes close.
    """

    def __init__(self, serve: Serve) -> None:
        """serve: what a rank runs: (pipe, rank, size, path of the store)."""
        self._ours, theirs = Pipe()
        self._folder = tempfile.TemporaryDirectory()
        if os.fork() == 0:
            self._ours.close()
            _tend(theirs, serve)
        theirs.close()
        self._started = 0

    def fork(self, size: int, serve: Serve | None = None) -> list[tuple[int, Connection]]:
        """Fork `size` ranks with a store of their own; return the process id and the pipe of each.

        serve: what these run, a module's function [the nursery's own].
        """
        self._started += 1
        folder = Path(self._folder.name)
        with Listener(str(folder / f"socket-{self._started}"), backlog=size) as listener:
            self._ours.send((size, listener.address, str(folder / f"store-{self._started}"), serve))
            pipes = [listener.accept() for _ in range(size)]
        ranks = sorted((*pipe.recv(), pipe) for pipe in pipes)
        return [(pid, pipe) for _, pid, pipe in ranks]


def _tend(pipe: Connection, serve: Serve) -> None:
    """Fork ranks until the pipe closes; never return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ends of ranks need no wait
    loaded = False
    while True:
        try:
            size, address, store, another = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        if not loaded:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process that forks may not have more
            for module in PRELOAD:
                importlib.import_module(module)
            without_guard_timing()
            gc.collect()
            gc.freeze()  # collections in the ranks skip, and do not copy, what is here
            loaded = True
        for rank in range(size):
            if os.fork() == 0:
                pipe.close()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    to_test = Client(address)
                    to_test.send((rank, os.getpid()))
                    (another or serve)(to_test, rank, size, store)
                finally:
                    os._exit(1)
