"""Texts kept in files: what users see changes only with a diff. `KEEP=1 pytest tests/PACKAGE` writes anew."""

import difflib
import os
import re
from pathlib import Path

_FRACTION = re.compile(r"-?\d+\.\d{7,}(?:e[+-]\d+)?")


def check(path: Path, text: str) -> None:
    """Hold `text` against a file; long fractions count to six digits."""
    content = _FRACTION.sub(lambda number: f"{float(number.group()):.6g}", text).rstrip("\n") + "\n"
    if os.environ.get("KEEP"):
        path.write_text(content, encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = list(difflib.unified_diff(lines, content.splitlines(), "kept", "now", lineterm=""))
    assert not changed, "\n".join(changed)
