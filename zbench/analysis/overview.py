"""What a run comes to, in a few figures, and those kept beside its records so that `list` need not read them.

A kept overview counts only while the files that it was made from are the same (inode, size, times of change),
the code that made it is the same, and its checksum is right. A file that has changed within the last seconds
is not trusted to show its next change in its times, so nothing is kept of a run that is being written.
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import zbench
from zbench.analysis.ranking import Ranking
from zbench.record.store import ENVIRONMENT, SPEC, TRIALS
from zbench.record.summary import ConfigSummary

KEPT = ".overview.json"
_MOST_BYTES = 16 << 20
_SETTLED_NS = 2_000_000_000
"""A file system may give two changes within this time the same time stamp."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A run in a few figures: when and where it began, how its configurations ended, and who leads."""

    started: str | None
    machine: str | None
    configurations: int
    failed: int
    incorrect: int
    best_axes: dict[str, Any] | None
    best_tokens_per_s: float | None
    ranking: Ranking


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
        sum(_has_failed(summary) for summary in summaries),
        sum(summary.verdict in ("drifted", "wrong") for summary in summaries),
        chosen.axes if chosen else None,
        chosen.number("tokens_per_s") if chosen else None,
        ranking,
    )


def _has_failed(summary: ConfigSummary) -> bool:
    pruned = summary.error is not None and summary.error.kind == "pruned"
    return summary.outcome in ("oom", "timeout", "crashed") and not pruned


class KeptOverview:
    """The place of a run's overview. Make it before the run's files are read: it notes what they are now."""

    def __init__(self, run: Path) -> None:
        """Take a run directory."""
        self._run = run
        self._state = _state(run)

    def load(self) -> Overview | None:
        """Return what was kept of the run as it is; None where that is nothing, or not to be trusted."""
        try:
            with (self._run / KEPT).open("rb") as file:
                digest, _, body = file.read(_MOST_BYTES).partition(b"\n")
            if digest.decode() != hashlib.sha256(body).hexdigest():
                return None
            document = json.loads(body)
            if document["of"] != [_code(), self._state]:
                return None
            return _read(document["overview"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def keep(self, overview: Overview) -> Overview:
        """Keep an overview of the files as they were noted, if that is possible, and return it."""
        is_settled = all(
            time.time_ns() - changed > _SETTLED_NS for _, _, *times in self._state for changed in times
        )
        if not is_settled or _state(self._run) != self._state:
            return overview
        with contextlib.suppress(
            OSError, ValueError, TypeError
        ):  # a run of somebody else: it is read each time
            document = {"of": [_code(), self._state], "overview": asdict(overview)}
            body = json.dumps(document, allow_nan=False).encode()
            _replace(self._run / KEPT, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        return overview


def _state(run: Path) -> list[list[int]]:
    """Return inode, size and times of change of each file that counts; nothing if one is missing."""
    try:
        found = [(run / name).stat() for name in (SPEC, ENVIRONMENT, TRIALS)]
    except OSError:
        return []
    return [[one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns] for one in found]


@cache
def _code() -> str:
    """Return what tells one state of the code that makes overviews from any other."""
    root = Path(__file__).parents[1]
    files = sorted(file for room in ("analysis", "record", "spec") for file in (root / room).glob("*.py*"))
    about = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((zbench.__version__, about)).encode()).hexdigest()


def _replace(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all; it need not survive a crash of the machine."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


def _read(data: dict[str, Any]) -> Overview:
    """Return the overview of plain data; ValueError or TypeError for data of other types."""
    leaders = dict(data["ranking"])
    leaders["indistinguishable"] = tuple(leaders["indistinguishable"])
    found = Overview(**{**data, "ranking": Ranking(**leaders)})
    ranking, axes = found.ranking, found.best_axes
    texts = (found.started, found.machine, ranking.best, ranking.recommended)
    counts = (found.configurations, found.failed, found.incorrect)
    numbers = (found.best_tokens_per_s, ranking.equal_within, *ranking.worse_by.values())
    if not (
        all(text is None or isinstance(text, str) for text in (*texts, *ranking.indistinguishable))
        and all(type(count) is int for count in counts)
        and all(number is None or _is_number(number) for number in numbers)
        and (axes is None or isinstance(axes, dict))
    ):
        raise ValueError("not an overview")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
