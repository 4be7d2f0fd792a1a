"""Finds and removes files of runs that zbench can create again.

Records, specifications, studies, baselines, tags and the logs of repeats that failed are never touched.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zbench.errors import UsageError, reason_of
from zbench.launch.executor import repeat_name
from zbench.launch.revisions import ENVIRONMENTS
from zbench.private import cache_directory
from zbench.record.locks import DirectoryLock
from zbench.record.store import LOGS, REFERENCES, TRACES, find_runs, is_inside, load_records


@dataclass(frozen=True, slots=True)
class CachedFolder:
    """A folder that can be created again. kind: its contents. owner: the run directory, if it is in one."""

    kind: str
    path: Path
    size: int
    changed: float
    owner: Path | None = None

    def remove(self) -> None:
        """Remove the folder. UsageError if a command is writing its run now, or it cannot be removed."""
        lock = None if self.owner is None else DirectoryLock(self.owner)
        try:
            if self.owner is not None and not is_inside(self.path, self.owner):
                raise UsageError(f"{self.path} leads out of its run")
            shutil.rmtree(self.path)
        except OSError as error:
            raise UsageError(f"cannot remove {self.path}: {reason_of(error)}") from None
        finally:
            if lock is not None:
                lock.release()


def cached_folders(output_dir: Path, *, older_than_s: float = 0.0) -> list[CachedFolder]:
    """Return folders of runs in `output_dir`, and environments of revisions, unchanged for that long."""
    newest = time.time() - older_than_s
    return [one for one in _all(output_dir) if one.changed <= newest]


def _all(output_dir: Path) -> Iterator[CachedFolder]:
    for run in find_runs(output_dir):
        yield from _folder("references of an interrupted run", run / REFERENCES, run)
        yield from _folder("traces (`zbench run --trace` makes new ones)", run / TRACES, run)
        for log in _logs_of_good_repeats(run):
            yield from _folder("logs of a successful repeat", log, run)
    for environment in sorted(cache_directory(ENVIRONMENTS).glob("*/")):
        yield from _folder("environment of a revision", environment, None)


def _logs_of_good_repeats(run: Path) -> Iterator[Path]:
    """Yield the log folders of repeats without an error; none of a run that cannot be read."""
    with contextlib.suppress(UsageError):
        records = load_records(run)
        kept = {Path(record.error.log).parts[:2] for record in records if record.error and record.error.log}
        for record in records:
            name = repeat_name(record.trial_id, record.repeat)
            if record.outcome == "ok" and (LOGS, name) not in kept:
                yield run / LOGS / name


def _folder(kind: str, path: Path, owner: Path | None) -> Iterator[CachedFolder]:
    """Yield the folder with its size and newest change; nothing if it is no folder or outside of its run."""
    if path.is_dir() and not path.is_symlink() and (owner is None or is_inside(path, owner)):
        with contextlib.suppress(FileNotFoundError):  # somebody removes it now
            files = [file.lstat() for file in path.rglob("*") if file.is_symlink() or file.is_file()]
            changed = max([path.stat().st_mtime, *(file.st_mtime for file in files)])
            yield CachedFolder(kind, path, sum(file.st_size for file in files), changed, owner)
