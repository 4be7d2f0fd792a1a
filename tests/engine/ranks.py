"""A pool of ranks for tests: processes that stay, so that a case costs what it computes and nothing more."""

import gc
import importlib
import os
import signal
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.engine import wire
from tests.engine.nursery import Nursery


class RankError(AssertionError):
    """A case failed on a rank; the text is that rank's traceback."""


class RankPool:
    """`size` processes with a gloo group for every smaller world; `run` calls a function on the first few."""

    def __init__(
        self, size: int, timeout: float = 120.0, *, nursery: Nursery | None = None, grace: float | None = None
    ) -> None:
        """nursery: what ranks are forked from [`NURSERY`]. grace: how many seconds the other ranks have left
        to answer when one has failed [timeout].
        """
        self.size, self.timeout, self._nursery = size, timeout, nursery
        self._grace = timeout if grace is None else grace
        self._pids: list[int] = []
        self._pipes: list[Connection] = []

    def _start(self) -> None:
        nursery = self._nursery or NURSERY[0]
        for pid, pipe in nursery.fork(self.size):
            self._pids.append(pid)
            self._pipes.append(pipe)

    def begin(self, world_size: int, function: str, *args: Any, **kwargs: Any) -> None:
        """Have each rank of a world call `module:function`(group, *args, **kwargs)."""
        if not self._pids:
            self._start()
        for pipe in self._pipes[:world_size]:
            wire.send(pipe, (world_size, function, args, kwargs))

    def answer(self, rank: int, timeout: float) -> tuple[bool, Any]:
        """Return whether one rank's call returned, and what; or the traceback."""
        if not self._pipes[rank].poll(timeout):
            raise RankError(f"rank {rank}: no answer after {timeout} s")
        found: tuple[bool, Any] = wire.receive(self._pipes[rank])
        return found

    def run(self, world_size: int, function: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Return what `module:function`(group, *args, **kwargs) returned on each rank of a world."""
        self.begin(world_size, function, *args, **kwargs)
        pipes = self._pipes[:world_size]
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < world_size:
            failed = next((a for ok, a in answers.values() if not ok), None)
            patience = self.timeout if failed is None else self._grace
            ready = wait([p for k, p in enumerate(pipes) if k not in answers], timeout=patience)
            if not ready:
                self.close()
                raise RankError(failed or f"{function}: no answer from some rank after {self.timeout} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                answers[pipes.index(pipe)] = wire.receive(pipe)
        for ok, answer in answers.values():
            if not ok:
                raise RankError(answer)
        return [answers[rank][1] for rank in range(world_size)]

    def close(self) -> None:
        """End every process."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pipe in self._pipes:
            with suppress(EOFError, OSError):
                while True:
                    pipe.recv_bytes()
            pipe.close()
        self._pids, self._pipes = [], []


NURSERY: list[Nursery] = []
"""The test session's, once its tests have been collected (`begin_nursery`)."""


def begin_nursery() -> None:
    """Fork what this process's pools fork their ranks from; nothing may have been computed."""
    NURSERY[:] = [Nursery(serve)]


def serve(pipe: Connection, rank: int, size: int, store: str) -> None:
    """Be a rank: obey the pool until it is gone."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    last = ""
    groups = {world: dist.new_group(list(range(world))) for world in range(1, size + 1)}
    while True:
        try:
            world, function, args, kwargs = wire.receive(pipe)
        except (EOFError, KeyboardInterrupt):
            return
        module, _, name = function.partition(":")
        if module != last:
            gc.collect()  # what another file's cases left in cycles is none of this one's
            last = module
        try:
            answer = (True, getattr(importlib.import_module(module), name)(groups[world], *args, **kwargs))
        except BaseException:
            answer = (False, f"rank {rank}:\n{traceback.format_exc()}")
        wire.send(pipe, answer)
