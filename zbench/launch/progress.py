"""Follow the lines that rank 0 appends after each step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Watch = Callable[[dict[str, Any]], str | None]
"""Called with each progress line (see `zbench.worker.job.RankJob`); a returned reason ends the trial."""


class ProgressTail:
    """Reads what was appended since the last look; a line that is still being written waits."""

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
        return [json.loads(line) for line in data[:end].splitlines()]

    def feed(self, watch: Watch) -> str | None:
        """Show new lines to `watch`; return the first reason it gives to end the trial."""
        for line in self.new_lines():
            if (reason := watch(line)) is not None:
                return reason
        return None
