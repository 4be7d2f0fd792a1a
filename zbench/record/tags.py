"""Names that people give to runs, in one file of a results directory."""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from zbench.errors import UsageError, reason_of
from zbench.record.documents import read_json, replace_durably, sealed
from zbench.record.locks import DirectoryLock

TAGS = "tags.json"
_PATIENCE_S = 20.0
RUN_ID = re.compile(r"\d{8}-\d{6}-\d{3}[0-9a-f]{2}", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class _Tags:
    schema_version: int
    tags: dict[str, str]


_KIND = TypeAdapter(_Tags)


def load_tags(output_dir: Path) -> dict[str, str]:
    """Return the names that people gave to runs: tag -> `sweep/run id`; empty where there is none yet."""
    path = output_dir / TAGS
    if not path.is_file():
        return {}
    return read_json(path, _KIND, "remove it to continue without tags").tags


def save_tag(output_dir: Path, name: str, run: str) -> None:
    """Give a run a name; one that another run had moves to this one.

    UsageError for a name that stands for a run already, and if another process writes tags for too long.
    """
    if not _TAG.fullmatch(name) or name == "last":
        raise UsageError(f"a tag holds letters, digits, '.', '-' and '_', and is not `last`; got {name!r}")
    if RUN_ID.fullmatch(name) or (output_dir / name).is_dir():
        raise UsageError(f"{name!r} names a run or a sweep already; choose a tag that names nothing else")
    path = output_dir / TAGS
    try:
        lock = DirectoryLock(output_dir, patience_s=_PATIENCE_S)  # one at a time, so that no tag is lost
        try:
            tags = load_tags(output_dir) | {name: run}
            replace_durably(path, sealed({"schema_version": 1, "tags": tags}, indent=2))
        finally:
            lock.release()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason_of(error)}; mend that, and tag it again") from None
