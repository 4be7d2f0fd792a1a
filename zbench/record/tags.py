"""Names that people give to runs (`zbench tag RUN NAME`), kept in `tags.json` beside the runs."""

import json
import re
from pathlib import Path

from zbench.errors import UsageError, reason_of

TAGS = "tags.json"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def load(output_dir: Path) -> dict[str, str]:
    """Return tag -> `sweep/run id`; empty where none was given yet."""
    path = output_dir / TAGS
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["tags"]
        return {str(name): str(run) for name, run in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"cannot read {path}: {error}; remove it to go on without tags") from None


def save(output_dir: Path, name: str, run: str) -> None:
    """Give a run a name; one that another run had moves to this one."""
    if not _NAME.fullmatch(name) or name == "last":
        raise UsageError(f"a tag holds letters, digits, '.', '-' and '_', and is not `last`; got {name!r}")
    path = output_dir / TAGS
    document = {"schema_version": 1, "tags": load(output_dir) | {name: run}}
    try:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason_of(error)}") from None
