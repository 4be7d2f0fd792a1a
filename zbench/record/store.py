"""A run directory: the sweep, its environment, and one line for every finished repeat. Append-only.

results/<sweep>/<run-id>/
    spec.yaml         the resolved sweep, readable as a sweep file
    environment.json  machine, software, invocation; the digest of spec.yaml
    trials.jsonl      one Record a line, flushed to disk as each repeat ends
    end.json          how many lines that are, if the run was ended and not killed
    logs/             stdout and stderr of every rank
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from zbench.errors import ExitCode, UsageError, ZbenchError, reason_of
from zbench.masking import masked
from zbench.record import lines
from zbench.record.documents import (
    DamagedError,
    checksum_of,
    digest_of,
    make_directory,
    read_json,
    replace_durably,
    sealed,
    sync_directory,
)
from zbench.record.figures import impossible_figure
from zbench.record.inputs import Shared
from zbench.record.locks import DirectoryLock
from zbench.record.record import SCHEMA_VERSION, Record
from zbench.record.tags import RUN_ID, load_tags
from zbench.spec.document import dump_yaml

SPEC, ENVIRONMENT, TRIALS, END, LOGS = "spec.yaml", "environment.json", "trials.jsonl", "end.json", "logs"
TRACES, REFERENCES, BASELINES = "traces", "references", "baselines"
SEARCH = "search.json"
"""What a search found, in its run directory."""
_STAMP = len("20260131-235959-042")


@dataclass(frozen=True, slots=True)
class _End:
    schema_version: int
    lines: int
    last: str


_END = TypeAdapter(_End)
_ENVIRONMENT = TypeAdapter(dict[str, Any])


class StorageError(ZbenchError):
    """A result could not be written, for example because the disk is full; earlier results are intact."""

    exit_code = ExitCode.USAGE


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Turn an OSError (a full disk) and a lack of memory into StorageError; a closed pipe stays."""
    try:
        yield
    except BrokenPipeError:
        raise
    except MemoryError:
        raise StorageError("cannot continue: out of memory; free some and use --resume") from None
    except OSError as error:
        raise StorageError(f"cannot continue: {error}; fix that and use --resume") from None


class RunDirectory(AbstractContextManager["RunDirectory"]):
    """A run directory open for writing; `create` makes one, `open` continues one. A context manager."""

    def __init__(self, path: Path) -> None:
        """Lock an existing directory and set damaged lines aside; `damaged` names them.

        A repeat that was killed from outside counts as not run: another record replaces it.
        """
        self.path = path
        self._lock = DirectoryLock(path)
        self._lines: lines.Lines = lines.mended(path / TRIALS)
        self.damaged = self._lines.damage
        self._note(self._lines)
        (path / END).unlink(missing_ok=True)
        sync_directory(path)  # it must not come back beside lines that are added now
        self._shared = Shared(self._records.values())
        self._is_writing = False  # still true after `append` was interrupted: the file tells what is in it

    @classmethod
    def create(
        cls,
        output_dir: Path,
        sweep: str,
        *,
        spec: dict[str, Any],
        environment: dict[str, Any],
        run_id: str | None = None,
    ) -> Self:
        """Create `<output_dir>/<sweep>/<run id>/`; UsageError, without any new file, if that fails."""
        mode = _mode()
        version = {"schema_version": SCHEMA_VERSION}
        path = output_dir / _file_name(sweep) / (run_id or new_run_id(output_dir))
        try:
            make_directory(path.parent)
            path.mkdir(mode)
            try:
                (path / LOGS).mkdir(mode)
                asked = dump_yaml(version | masked(spec)).encode()
                replace_durably(path / SPEC, asked)
                about = version | masked(environment) | {"spec_digest": digest_of(asked)}
                replace_durably(path / ENVIRONMENT, sealed(about, indent=2))
                replace_durably(path / TRIALS, b"")
                sync_directory(path.parent)
                return cls(path)
            except (OSError, UsageError):
                _remove(path)
                raise
        except OSError as error:
            _remove_empty(path.parent)
            reason = reason_of(error)
            raise UsageError(
                f"cannot write results under {output_dir}: {reason}; choose with -o DIR"
            ) from None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Continue a run. UsageError if this is not a run directory or another process is writing it."""
        require_run(path)
        load_environment(path)
        for entry in path.iterdir():
            if entry.is_symlink() and ".journal.lock" not in entry.name:  # Optuna's locks, never written to
                raise UsageError(
                    f"{entry} is a symbolic link, and resuming would write to its target; copy that here"
                    " first"
                )
        try:
            return cls(path)
        except OSError as error:
            raise UsageError(f"cannot write to {path}: {reason_of(error)}") from None

    @property
    def run_id(self) -> str:
        """The run id of its records: the directory's name, unless the directory was renamed."""
        return next((record.run_id for record in self._records.values()), self.path.name)

    def records(self) -> list[Record]:
        """Return every record, in the order they were written; UsageError where the file is gone."""
        self._settle()
        self._require_unchanged()
        return list(self._records.values())

    def holds(self, trial_id: str, repeat: int) -> bool:
        """Whether this repeat has finished or failed, and need not run again."""
        return (trial_id, repeat) in self._records

    def append(self, record: Record) -> None:
        """Add a record; once this returns it survives a crash of the machine. StorageError if it cannot,
        UsageError if it was measured on another kind of machine than the records before it, or of other
        files, or has a figure that no measurement gives.
        """
        if (figure := impossible_figure(record)) is not None:
            raise UsageError(f"{record.trial_id} repeat {record.repeat}: {figure}; it is not recorded")
        self._shared.require(record)
        self._require_unchanged()
        path = self.path / TRIALS
        self._is_writing = True
        try:
            with path.open("ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                try:
                    data = lines.encode(record, self._lines.last)
                    if file.write(data) != len(data):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)  # half a line must not run into the next one
                    raise
        except OSError as error:
            reason = reason_of(error)
            raise StorageError(f"cannot write {path}: {reason}; free some space and use --resume") from None
        self._records[record.trial_id, record.repeat] = record
        self._shared.note(record)
        self._lines = lines.Lines([], self._lines.count + 1, checksum_of(data))
        self._file = _identity(path)
        self._is_writing = False

    def _note(self, content: lines.Lines) -> None:
        finished = [one for one in content.records if one.error is None or one.error.kind != "killed"]
        self._records = {(one.trial_id, one.repeat): one for one in finished}
        self._lines = content
        self._file = _identity(self.path / TRIALS)

    def _settle(self) -> None:
        """Read the file, if a write to it was interrupted."""
        if self._is_writing:
            self._note(lines.read(self.path / TRIALS))
            self._is_writing = False

    def _require_unchanged(self) -> None:
        """Raise UsageError if another process replaced or changed the file."""
        if _identity(self.path / TRIALS) != self._file:
            raise changed_in_mid_run(self.path)

    def has_run(self) -> bool:
        """Whether any repeat has ended; invalid points never began."""
        return any(record.outcome != "invalid" for record in self.records())

    def discard_if_empty(self) -> bool:
        """Remove the directory if no repeat has ended; return whether it is gone."""
        if self.has_run():
            return False
        self.close()
        _remove(self.path)
        return True

    def close(self) -> None:
        """Write how many lines the run has, and release the lock."""
        with contextlib.suppress(OSError):  # on a full disk the run looks like one that was killed
            self._settle()
            end = asdict(_End(SCHEMA_VERSION, self._lines.count, self._lines.last))
            replace_durably(self.path / END, sealed(end))
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()


def changed_in_mid_run(path: Path) -> UsageError:
    """Return the error of a run whose records another process removed or changed."""
    return UsageError(
        f"{path / TRIALS} was removed or changed by another process during the run,"
        " so its results cannot be trusted; put the file back and use --resume, or start a new run"
    )


def load_records(path: Path) -> list[Record]:
    """Return the records of a run directory or a `trials.jsonl`, read-only; a torn last line is left out."""
    if path.is_dir():
        require_run(path)
        load_environment(path)
    return read_lines(path)


def read_lines(path: Path) -> list[Record]:
    """Return the records as `load_records` does; of a run directory no other file is checked."""
    file = path / TRIALS if path.is_dir() else path
    try:
        content = lines.read(file)
        end = _end_of(path)
        if not _is_whole(content, end):  # between the two files another process may have continued the run
            content = lines.read(file)
            end = _end_of(path)
        if end is not None and not _is_whole(content, end):
            raise UsageError(
                f"{file}: expected {end.lines} lines, as when the run ended, found {content.count};"
                " resume the run, which measures what is missing"
            )
        return content.records
    except OSError as error:
        raise UsageError(f"cannot read {file}: {reason_of(error)}") from None


def _is_whole(content: lines.Lines, end: _End | None) -> bool:
    return end is None or (end.lines, end.last) == (content.count, content.last)


def _end_of(path: Path) -> _End | None:
    """Return what a run's lines were when it was ended; None if it was not, or was killed."""
    if not (path / END).is_file():
        return None
    return read_json(path / END, _END, "resume the run, which writes it anew")


def load_environment(path: Path) -> dict[str, Any]:
    """Return a run directory's environment.json; UsageError if it or the sweep file was changed.

    It is the head of a run: what a newer zbench wrote in another format is refused here, and named as such.
    """
    environment = read_json(path / ENVIRONMENT, _ENVIRONMENT, "copy the run again, or remove it")
    try:
        digest = digest_of((path / SPEC).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path / SPEC}: {reason_of(error)}") from None
    if digest != environment.pop("spec_digest", digest):
        raise DamagedError(f"{path / SPEC} was changed since the run began; copy the run again, or remove it")
    return environment


def require_run(path: Path) -> None:
    """Raise UsageError unless `path` is a run directory."""
    if not (path / SPEC).is_file() or not (path / ENVIRONMENT).is_file() or not (path / TRIALS).is_file():
        raise UsageError(f"{path} is not a run directory: expected {SPEC}, {ENVIRONMENT} and {TRIALS} in it")


def is_inside(path: Path, run: Path) -> bool:
    """Whether a path leads to a place below a run directory, as it is written: by no link and no `..`."""
    return path.is_relative_to(run) and path.resolve() == run.resolve() / path.relative_to(run)


def find_runs(output_dir: Path) -> list[Path]:
    """Return all run directories below a results directory (one or two levels down), oldest first."""
    files = [*output_dir.glob(f"*/{TRIALS}"), *output_dir.glob(f"*/*/{TRIALS}")]
    runs = (file.parent for file in files if (file.parent / SPEC).is_file())
    return sorted(runs, key=lambda run: (run.name, str(run)))


def resolve_run(run: str, output_dir: Path) -> Path:
    """Return the run directory that `run` names: a path, a run id, a tag, or a sweep's newest run.

    `last` is the newest run of all; `last~1` (or `SWEEP~1`) the one before it, and so on.
    """
    if os.path.isfile(Path(run) / TRIALS):  # False for a name that no file can have
        return Path(run)
    runs = find_runs(output_dir)
    run = load_tags(output_dir).get(run, run)
    named = [p for p in runs if run in (p.name, f"{p.parent.name}/{p.name}")]
    name, back = run, 0
    if (age := re.fullmatch(r"(.+)~(\d{1,9})", run, re.ASCII)) is not None:
        name = age[1]
        back = int(age[2])
    newest = [p for p in reversed(runs) if name in ("last", p.parent.name)][back : back + 1]
    match named or newest:
        case [path]:
            return path
        case []:
            hint = f"; the newest is {runs[-1].parent.name}/{runs[-1].name}" if runs else ""
            raise UsageError(
                f"no run {run!r} in {output_dir}{hint} (give a path, a run id, a tag, `last` or `last~1`)"
            )
        case several:
            raise UsageError(f"{run!r} names several runs: {', '.join(map(str, several))}; give the path")


def new_run_id(output_dir: Path) -> str:
    """Return an id that sorts after all of a results directory: `20260131-235959-0421ab`.

    It is the time (UTC, milliseconds, random digits) or, where the clock was set back, one after the newest.
    """
    names = (path.name for path in output_dir.glob("*/*"))
    newest = max((name for name in names if RUN_ID.fullmatch(name)), default="")
    now = _run_id(datetime.now(UTC))
    if now[:_STAMP] > newest[:_STAMP]:
        return now
    try:
        last = datetime.strptime(newest[:_STAMP] + "000+0000", "%Y%m%d-%H%M%S-%f%z")
        return _run_id(last + timedelta(milliseconds=1))
    except (ValueError, OverflowError):  # no id that zbench gave
        return now


def _run_id(when: datetime) -> str:
    return f"{when:%Y%m%d-%H%M%S}-{when.microsecond // 1000:03d}{secrets.token_hex(1)}"


def _mode() -> int:
    """Return the mode of a new run directory: only its owner has access, unless `ZBENCH_RUN_MODE` is set."""
    text = os.environ.get("ZBENCH_RUN_MODE", "700")
    if not re.fullmatch("0?7[0-7]{2}", text):
        raise UsageError(f"ZBENCH_RUN_MODE: expected a mode as chmod takes it, such as 755, got {text!r}")
    return int(text, 8)


def _identity(file: Path) -> tuple[int, int, int] | None:
    """Return a value that changes if a file is replaced or written; None if there is no file."""
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_size


def _remove(path: Path) -> None:
    """Delete a run directory, and the sweep's and the results' if nothing else is in them."""
    shutil.rmtree(path, ignore_errors=True)
    _remove_empty(path.parent)


def _remove_empty(sweep: Path) -> None:
    for place in (sweep, sweep.parent):
        with contextlib.suppress(OSError):
            place.rmdir()


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "sweep"
