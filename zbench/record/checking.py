"""Whether the files of a run, a baseline, a site or a folder of results are as zbench wrote them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zbench.errors import ZbenchError, reason_of
from zbench.record.documents import DamagedError, page_source, require_seal
from zbench.record.record import Record
from zbench.record.store import (
    BASELINES,
    ENVIRONMENT,
    SEARCH,
    TRIALS,
    changed_in_mid_run,
    find_runs,
    load_environment,
    read_lines,
)
from zbench.record.tags import TAGS


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that has a digest or checksums. problem: what is wrong with it."""

    path: Path
    problem: str | None


def checked(place: Path) -> Iterator[Checked]:
    """Yield every file with a digest at a place: a file, a run's directory, a site's, or one of results.

    Logs, studies, and the feed and the badge of a site have none.
    """
    files = [place]
    if place.is_dir():
        runs = [place] if (place / TRIALS).is_file() else find_runs(place)
        for run in runs:
            yield _tried(run / ENVIRONMENT, lambda path: load_environment(path.parent))  # and spec.yaml
            yield _tried(run / TRIALS, lambda path: read_lines(path.parent))  # and end.json
            if (run / SEARCH).is_file():
                yield _tried(run / SEARCH, _require_whole)
        patterns = (TAGS, f"{BASELINES}/*.json", "runs/*/*.json", "*.html", "runs/*/*.html", "trends/*.html")
        files = sorted(file for pattern in patterns for file in place.glob(pattern))
    for file in files:
        yield _tried(file, _require_whole)


def _tried(path: Path, check: Callable[[Path], object]) -> Checked:
    try:
        check(path)
    except ZbenchError as error:
        return Checked(path, str(error))
    except OSError as error:
        return Checked(path, f"cannot read {path}: {reason_of(error)}")
    return Checked(path, None)


def _require_whole(file: Path) -> None:
    data = file.read_bytes()
    if file.suffix != ".html":
        require_seal(data, str(file), "write it again, or remove it")
    elif page_source(data) is None:
        raise DamagedError(f"{file} is damaged: it is not what zbench wrote; publish again")


def require_kept(path: Path, records: Sequence[Record]) -> None:
    """Raise UsageError unless a run that has ended still has a line for each of these records."""
    try:
        lines_on_disk = (path / TRIALS).read_bytes().count(b"\n") if records else 0
    except OSError:
        raise changed_in_mid_run(path) from None
    if lines_on_disk < len(records):
        raise changed_in_mid_run(path)
