"""The findings of a long measurement, one JSON line each, so that it can continue after an interruption."""

import json
from pathlib import Path
from typing import Any


class Kept:
    """The findings in `out`.jsonl, in the order in which they were added."""

    def __init__(self, out: Path) -> None:
        self._file = out.with_suffix(".jsonl")
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.found: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the findings of one kind."""
        return [one for one in self.found if one.get("kind") == kind]

    def add(self, finding: dict[str, Any]) -> None:
        """Keep a finding, on disk before this returns."""
        self.found.append(finding)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(finding) + "\n")
