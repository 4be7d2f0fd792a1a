"""What a run comes to, in a few figures, and those kept beside its records so that `list` need not read them.

A kept overview counts only while the files that it was made from are the same (inode, size, times of change),
the code that made it is the same, and its checksum is right. A file that changed within the last seconds is
not trusted to show its next change in its times: then a checksum of the files is kept, too, and compared.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

import zbench
from zbench.analysis.ranking import Ranking, rank
from zbench.errors import ZbenchError
from zbench.record.record import Record
from zbench.record.store import ENVIRONMENT, SPEC, TRIALS, load_environment, load_records
from zbench.record.summary import ConfigSummary, has_failed, summarize
from zbench.spec.sweep import ObjectiveSpec

KEPT = ".overview.json"
_MOST_BYTES = 16 << 20
_MUCH = 1_000_000
"""Bytes from which on it is cheaper to keep an overview anew than to read its files each time."""
_SETTLED_NS = 2_000_000_000
"""A file system may give two changes within this time the same time stamp."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A run in a few figures: when and where it began, how its configurations ended, and who leads."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    started: str | None
    machine: str | None
    configurations: int
    failed: int
    incorrect: int
    best_axes: dict[str, Any] | None
    best_tokens_per_s: float | None
    ranking: Ranking


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the file holds.

    of: the code that made it, and the state of the run's files. content: their checksum where their times are
    not trusted.
    """

    of: list[Any]
    content: str
    overview: Overview


_KEPT = TypeAdapter(_Kept)


def overview_of(
    environment: Mapping[str, Any], summaries: Sequence[ConfigSummary], ranking: Ranking
) -> Overview:
    """Return the overview of a run's configurations; a search that ended a slow one did not fail."""
    chosen = next((s for s in summaries if s.trial_id == ranking.recommended), None)
    started, machine = (environment.get(key) for key in ("started", "fingerprint"))
    return Overview(
        str(started) if started is not None else None,
        str(machine) if machine is not None else None,
        len(summaries),
        sum(map(has_failed, summaries)),
        sum(summary.verdict in ("drifted", "wrong") for summary in summaries),
        chosen.axes if chosen else None,
        chosen.number("tokens_per_s") if chosen else None,
        ranking,
    )


class KeptOverview:
    """The place of a run's overview. Make it before the run's files are read: it notes what they are now."""

    def __init__(self, run: Path) -> None:
        """Take a run directory."""
        self._run = run
        self._state = _state(run)
        self._content = "" if _is_settled(self._state) else _content(run)

    def load(self) -> Overview | None:
        """Return what was kept of the run as it is; None where that is nothing, or not to be trusted."""
        try:
            with (self._run / KEPT).open("rb") as file:
                digest, _, body = file.read(_MOST_BYTES).partition(b"\n")
            if digest.decode() != hashlib.sha256(body).hexdigest():
                return None
            kept = _KEPT.validate_json(body, strict=True)
        except (OSError, ValueError):
            return None
        if kept.of != [_code(), self._state]:
            return None
        if kept.content and kept.content != (self._content or _content(self._run)):
            return None
        if kept.content and not self._content and sum(size for _, size, *_ in self._state) > _MUCH:
            return self.keep(kept.overview)
        return kept.overview

    def keep(self, overview: Overview) -> Overview:
        """Keep an overview of the files as they were noted, if that is possible, and return it."""
        if not self._state or _state(self._run) != self._state:
            return overview
        # a run of somebody else, or a full disk: it is read each time
        with contextlib.suppress(OSError, ValueError, TypeError):
            kept = _Kept([_code(), self._state], self._content, overview)
            body = json.dumps(asdict(kept), allow_nan=False).encode()
            # not replaced as a whole: the checksum tells a reader of what is cut short
            (self._run / KEPT).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        return overview

    def made(self, summaries: Sequence[ConfigSummary], objective: ObjectiveSpec) -> Overview:
        """Return a new overview of the run, of whose records these are the summaries, and keep it."""
        ranking = rank(summaries, objective)
        return self.keep(overview_of(load_environment(self._run), summaries, ranking))


def ranking_kept(run: Path, records: Sequence[Record], objective: ObjectiveSpec) -> Ranking:
    """Return the ranking of a run's records, all that it has, and keep its overview for `list` and `show`."""
    kept, summaries = KeptOverview(run), summarize(records)
    ranking = rank(summaries, objective)
    with contextlib.suppress(ZbenchError):  # an environment that cannot be read: `list` says so
        kept.keep(overview_of(load_environment(run), summaries, ranking))
    return ranking


def overview_at(run: Path) -> Overview:
    """Return a run's overview: the kept one, or a new one where that is missing or out of date."""
    kept = KeptOverview(run)
    overview = kept.load()
    if overview is None:
        from zbench.spec.load import recorded_objective  # loads YAML, which a kept overview does not need

        overview = kept.made(summarize(load_records(run)), recorded_objective(run / SPEC))
    return overview


def _state(run: Path) -> list[list[int]]:
    """Return inode, size and times of change of each file that counts; nothing if one is missing."""
    try:
        found = [(run / name).stat() for name in (SPEC, ENVIRONMENT, TRIALS)]
    except OSError:
        return []
    return [[one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns] for one in found]


def _is_settled(state: list[list[int]]) -> bool:
    now = time.time_ns()
    return all(now - changed > _SETTLED_NS for _, _, *times in state for changed in times)


def _content(run: Path) -> str:
    """Return a checksum of the files that count; of nothing where one cannot be read."""
    digest = hashlib.sha256()
    with contextlib.suppress(OSError):
        for name in (SPEC, ENVIRONMENT, TRIALS):
            with (run / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@cache
def _code() -> str:
    """Return what tells one state of the code that makes overviews from any other."""
    root = Path(zbench.__file__).parent
    files = sorted(file for room in ("analysis", "record", "spec") for file in (root / room).glob("*.py*"))
    about = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((zbench.__version__, about)).encode()).hexdigest()
