"""The progress lines of rank 0, as their reader sees them (`zbench.worker.process.Progress` writes them)."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Watch = Callable[[dict[str, Any]], str | None]
"""Called with each progress line (see `zbench.worker.job.RankJob`); a returned reason ends the trial."""


class ProgressTail:
    """Reads what was appended since the last look; a line that is still being written waits.

    Make a new one for each run of a trial. A network file system may show a line before what is in it: that
    is skipped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the whole lines that came since the last call."""
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
        """Show new lines to `watch`; return the first reason it gives to end the trial."""
        for line in self.new_lines():
            if (reason := watch(line)) is not None:
                return reason
        return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return a progress line, None for bytes that are none."""
    with suppress(ValueError):
        return dict(json.loads(text))
    return None
