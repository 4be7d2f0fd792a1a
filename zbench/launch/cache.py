"""Finds and removes files of runs that zbench can create again, and what commands left that were killed.

Records, their specifications, studies, baselines, tags and the logs of repeats that failed are never touched.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zbench.errors import UsageError, reason_of
from zbench.launch.executor import repeat_name
from zbench.launch.revisions import ENVIRONMENTS
from zbench.private import cache_directory
from zbench.record.documents import drafts
from zbench.record.locks import DirectoryLock
from zbench.record.store import (
    BASELINES,
    END,
    ENVIRONMENT,
    LOGS,
    REFERENCES,
    SPEC,
    TRACES,
    TRIALS,
    find_runs,
    is_inside,
    load_records,
    read_lines,
)
from zbench.record.tags import RUN_ID

_AT_FIRST = {SPEC, ENVIRONMENT, TRIALS, END, LOGS, REFERENCES, TRACES, ".lock"}
_JOURNAL = "study."
"""What the files of a search begin with; without records it holds no result."""


@dataclass(frozen=True, slots=True)
class Removable:
    """A folder or a file to remove. kind: its contents. owner: the folder that its writer locks, if any."""

    kind: str
    path: Path
    size: int
    changed: float
    owner: Path | None = None

    def remove(self) -> None:
        """Remove it. UsageError if a command is writing in its owner now, or it cannot be removed."""
        lock = None if self.owner is None else DirectoryLock(self.owner)
        try:
            if self.owner is not None and not is_inside(self.path, self.owner):
                raise UsageError(f"{self.path} leads out of its run")
            if self.path.is_dir():
                shutil.rmtree(self.path)
            else:
                self.path.unlink()
        except OSError as error:
            raise UsageError(f"cannot remove {self.path}: {reason_of(error)}") from None
        finally:
            if lock is not None:
                lock.release()


def removable(output_dir: Path, *, older_than_s: float = 0.0) -> list[Removable]:
    """Return what can go of runs in `output_dir`, and environments of revisions, unchanged for that long."""
    newest = time.time() - older_than_s
    return [one for one in _all(output_dir) if one.changed <= newest]


def _all(output_dir: Path) -> Iterator[Removable]:
    removables = list(leftovers(output_dir))
    yield from removables
    for run in set(find_runs(output_dir)) - {one.path for one in removables}:
        yield from _folder("references of an interrupted run", run / REFERENCES, run)
        yield from _folder("traces (`zbench run --trace` makes new ones)", run / TRACES, run)
        for log in _logs_of_good_repeats(run):
            yield from _folder("logs of a successful repeat", log, run)
    for environment in sorted(cache_directory(ENVIRONMENTS).glob("*/")):
        yield from _folder("environment of a revision", environment, environment)


def leftovers(output_dir: Path) -> Iterator[Removable]:
    """Yield what killed commands left in a results directory: runs without a record, drafts of documents.

    A command that runs now may still need them: it holds the lock of the `owner`.
    """
    runs = [run for run in sorted(output_dir.glob("*/*")) if RUN_ID.fullmatch(run.name) and _is_empty(run)]
    for run in runs:
        yield from _folder("run without a record", run, run)
    for draft in drafts(output_dir, ".", BASELINES, "*/*"):
        if draft.parent not in runs:
            owner = None if draft.parent.name == BASELINES else draft.parent
            with contextlib.suppress(FileNotFoundError):  # it is a document by now
                about = draft.stat()
                yield Removable("draft of a document", draft, about.st_size, about.st_mtime, owner)


def _is_empty(run: Path) -> bool:
    """Whether a run directory holds only what is there before a repeat has ended."""
    try:
        names = os.listdir(run)
        initial_names = {*_AT_FIRST, *(draft.name for draft in drafts(run, "."))}
        if any(name not in initial_names and not name.startswith(_JOURNAL) for name in names):
            return False
        if TRIALS not in names or (run / TRIALS).stat().st_size == 0:
            return True
        return END not in names and all(record.outcome == "invalid" for record in read_lines(run))
    except (OSError, UsageError):  # it is no folder, or another user's; damaged lines are a record, too
        return False


def _logs_of_good_repeats(run: Path) -> Iterator[Path]:
    """Yield the log folders of repeats without an error; none of a run that cannot be read."""
    with contextlib.suppress(UsageError):
        records = load_records(run)
        error_logs = {Path(r.error.log).parts[:2] for r in records if r.error and r.error.log}
        for record in records:
            name = repeat_name(record.trial_id, record.repeat)
            if record.outcome == "ok" and (LOGS, name) not in error_logs:
                yield run / LOGS / name


def _folder(kind: str, path: Path, owner: Path | None) -> Iterator[Removable]:
    """Yield the folder with its size and newest change; nothing if it is no folder or outside of its run."""
    if path.is_dir() and not path.is_symlink() and (owner is None or is_inside(path, owner)):
        with contextlib.suppress(FileNotFoundError):  # somebody removes it now
            files = [file.lstat() for file in path.rglob("*") if file.is_symlink() or file.is_file()]
            changed = max([path.stat().st_mtime, *(file.st_mtime for file in files)])
            yield Removable(kind, path, sum(file.st_size for file in files), changed, owner)
