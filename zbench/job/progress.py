"""The progress lines of rank 0, as the launcher reads them (`zbench.worker.process.Progress` writes them)."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Watch = Callable[[dict[str, Any]], str | None]
"""Called with each progress line (see `RankJob`); a returned reason ends the trial."""


class ProgressTail:
    """Reads the new progress lines of rank 0 (`process.Progress` writes them). An incomplete line is read
    later.

    Make a new one for each run of a trial. A network file system may show a line before its contents: such a
    line is skipped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the complete lines written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        return [line for line in map(_parsed, data[:end].splitlines()) if line is not None]

    def feed(self, watch: Watch) -> str | None:
        """Pass new lines to `watch`; return its first reason to end the trial, if any."""
        return next(filter(None, map(watch, self.new_lines())), None)


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return a parsed progress line, None for invalid bytes."""
    with contextlib.suppress(ValueError):
        return dict(json.loads(text))
    return None
