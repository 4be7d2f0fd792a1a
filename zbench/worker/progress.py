"""Tells the launcher, line by line, how far a worker is."""

import json
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO


class Progress(AbstractContextManager["Progress"]):
    """Appends one JSON line a step to a file or FIFO; does nothing without a path, and never fails a
    trial."""

    def __init__(self, path: str | None) -> None:
        self._file: IO[str] | None = open(path, "a", buffering=1) if path else None  # noqa: SIM115 - closed in exit
        self._since = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def step(self, phase: str, step: int, steps: int, seconds: float | None = None) -> None:
        """Note that `step` of `steps` (counted from 1) is done; `seconds`, or the time since the last
        line."""
        now = time.perf_counter()
        took, self._since = now - self._since if seconds is None else seconds, now
        if self._file is None:
            return
        line = {"phase": phase, "step": step, "steps": steps, "seconds": took}
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError:
            self._file = None  # nobody listens any more
