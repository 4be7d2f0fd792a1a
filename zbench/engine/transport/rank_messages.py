"""Texts that ranks write for other ranks, and the process that may write them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch._C._distributed_c10d import Store

from zbench import clocks
from zbench.errors import UsageError


class OwnProcess:
    """The process that built an engine. A fork of it (a DataLoader's worker, `os.fork`) inherits the
    connections to the other ranks, and none of the threads. The other ranks would take its messages for
    messages of its parent.
    """

    def __init__(self, rank: int) -> None:
        self._rank, self._pid = rank, os.getpid()

    @property
    def is_fork(self) -> bool:
        """Whether this process is a fork of that process."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise UsageError in a fork."""
        if self.is_fork:
            raise UsageError(
                f"this process was forked from rank {self._rank} (process {self._pid}), whose engine has its"
                " threads and its connections to the other ranks there. Call the engine, and at zero_stage 3"
                " the model, in the rank's own process; or give the fork a copy that was made before, inside"
                " engine.gathered(model): copy.deepcopy(model)"
            )


class RankMessages:
    """Texts that each rank writes for the others; `store` is None in a world of one rank. lost: the rank that
    serves the store has left.
    """

    def __init__(self, rank: int, world_size: int, store: Store | None, process: OwnProcess) -> None:
        self._rank, self._world_size, self._process = rank, world_size, process
        self._connected = store
        self.lost = False

    @property
    def _store(self) -> Store | None:
        """The store; None in a fork, which would speak over the connection of its parent process."""
        return None if self._process.is_fork else self._connected

    def write(self, topic: str, text: str) -> None:
        """Let the others read `text`."""
        with self._unless_lost():
            if self._store is not None:
                self._store.set(f"{topic}/{self._rank}", text)

    @contextmanager
    def _unless_lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:
            self._connected, self.lost = None, True

    def read(self, topic: str, seconds: float) -> dict[int, str]:
        """Return the texts of the ranks that wrote one within `seconds`, by rank."""
        texts: dict[int, str] = {}
        deadline = clocks.monotonic() + seconds
        while self._store is not None:
            with self._unless_lost():
                for rank in set(range(self._world_size)) - texts.keys():
                    if self._store.check([f"{topic}/{rank}"]):
                        texts[rank] = self._store.get(f"{topic}/{rank}").decode()
            if len(texts) == self._world_size or clocks.monotonic() > deadline:
                break
            time.sleep(0.01)
        return dict(sorted(texts.items()))
