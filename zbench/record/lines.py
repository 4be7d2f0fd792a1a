"""Records as JSON lines: one Record a line, chained by checksums; damage and newer formats are refused."""

import contextlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from zbench.errors import SkippedRecordWarning, UsageError
from zbench.record.documents import (
    FIRST,
    DamagedError,
    Link,
    chain,
    check_schema_version,
    linked,
    relinked,
    replace_durably,
)
from zbench.record.figures import impossible_figure
from zbench.record.record import Record
from zbench.record.secrets import masked_record
from zbench.record.summary import CORRECT

_RECORD = TypeAdapter(Record)


_BLOCKS = {"workload", "run", "engine", "verify"}
_FINITE, _LISTS = (str, int, type(None)), (list, tuple)  # isinstance is slower with `list | tuple`
_TRIAL_ID = re.compile(r"[0-9a-f]{1,64}")


def encode(record: Record, after: str = FIRST) -> bytes:
    """Return the record as one line of JSON, newline included. Non-finite floats become strings (`"inf"`),
    secrets are masked.

    after: the checksum of the line before (`documents.checksum_of`).
    """
    return linked(json.dumps(jsonable(masked_record(record)), separators=(",", ":")), after)


def encode_all(records: Iterable[Record]) -> bytes:
    """Return records as the lines of one file."""
    return relinked(map(encode, records))[0]


def jsonable(record: Record) -> dict[str, Any]:
    """Return the record as values of strict JSON; `decode` reads them back."""
    plain = _RECORD.dump_python(record, warnings=False)
    return {key: _finite(value) for key, value in plain.items()}


def decode(value: object, place: str = "record") -> Record:
    """Return the Record of a parsed JSON value; UsageError naming `place` and the key if it is not one."""
    check_schema_version(value, place)
    try:
        record = _RECORD.validate_python(value)
    except RecursionError:
        raise UsageError(f"{place}: not a zbench record: nested too deeply") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "record"
        raise UsageError(f"{place}: not a zbench record: {key}: {first['msg']}") from None
    for problem in _problems(record):
        raise UsageError(f"{place}: not a zbench record: {problem}")
    return record


def _problems(record: Record) -> Iterator[str]:
    for block in _BLOCKS & record.config.keys():
        if not isinstance(record.config[block], dict):
            yield f"config.{block}: expected an object"
    if not _TRIAL_ID.fullmatch(record.trial_id):  # it becomes part of paths
        yield f"trial_id: expected hexadecimal digits, got {record.trial_id[:80]!r}"
    if record.repeat < 0:
        yield f"repeat: expected 0 or more, got {record.repeat}"
    if record.outcome == "ok" and record.timing is None:
        yield "timing: missing, though the repeat succeeded"
    verdict, ratio = record.correctness.verdict, record.correctness.error_ratio
    if verdict in CORRECT and ratio is not None and not 0 <= ratio < math.inf:
        yield f"correctness.error_ratio: {ratio} does not go with the verdict {verdict}"


def decode_line(line: bytes, place: str = "record") -> Record:
    """Return the Record of one line; UsageError naming `place`, DamagedError if its checksum is wrong."""
    return _decoded(next(chain([line]), Link(1, line, None, follows=False)), place)


def _decoded(link: Link, place: str) -> Record:
    value = None
    if link.checksum is not None:
        with contextlib.suppress(ValueError, RecursionError):  # RecursionError: nested too deeply
            value = json.loads(link.line)
    if value is None:
        raise DamagedError(
            f"{place}: damaged line, its checksum is wrong; resume the run, which sets the line aside and"
            " measures its repeat again, or remove the run"
        )
    return decode(value, place)


@dataclass(frozen=True, slots=True)
class Lines:
    """What a `trials.jsonl` holds.

    records: the last one of each repeat, in the place of the first; none has impossible figures. count: of
    all lines. last: the checksum of the last line. damage: where lines were changed, doubled or lost, if
    that was mended.
    """

    records: list[Record]
    count: int
    last: str
    damage: tuple[str, ...] = ()


def read(path: Path) -> Lines:
    """Return the lines of a `trials.jsonl`; a torn last line is left out, other damage is an error.

    All lines are of one run: the one that the directory is named after or, where it was renamed, that of
    the first.
    """
    records: list[tuple[str, Record]] = []
    last = FIRST
    with path.open("rb") as file:
        for link in chain(file):
            place = f"{path}:{link.number}"
            if link.checksum is None and is_torn_end(link.line):
                continue
            records.append((place, _decoded(link, place)))
            if not link.follows or link.checksum is None:
                raise DamagedError(
                    f"{place}: the line before it is missing, or lines were doubled or exchanged; resume the"
                    " run, which measures what is missing"
                )
            last = link.checksum
    return _of_one_run(path, records, last)


def _of_one_run(path: Path, pairs: list[tuple[str, Record]], last: str, damage: Sequence[str] = ()) -> Lines:
    """Return lines by their records, each with its place; UsageError for a record of another run."""
    runs = [record.run_id for _, record in pairs]
    name = path.resolve().parent.name
    run = name if name in runs else next(iter(runs), name)
    for place, record in pairs:
        if record.run_id != run:
            raise UsageError(f"{place}: a record of another run, {record.run_id}; remove the line")
    possible = [record for place, record in pairs if not _is_skipped(place, record)]
    latest = {(record.trial_id, record.repeat): record for record in possible}
    return Lines(list(latest.values()), len(pairs), last, tuple(damage))


def _is_skipped(place: str, record: Record) -> bool:
    """Say whether a record has a figure that no measurement gives, and warn: its repeat counts as not run."""
    figure = impossible_figure(record)
    if figure is not None:
        text = f"{place}: this record is skipped: {figure}; --resume measures its repeat again"
        warnings.warn(text, SkippedRecordWarning, stacklevel=2)
    return figure is not None


def is_torn_end(line: bytes) -> bool:
    """Whether a last line is what a kill during a write leaves: a part of a record, without a newline."""
    return not line.endswith(b"\n") and not is_record(line) and not is_record(line[:-1])


def mended(path: Path) -> Lines:
    """Return the lines of a `trials.jsonl`, after damaged and doubled ones were moved to a side file.

    The lines that stay are one chain then. An incomplete last line is left by a kill during a write, and is
    not reported as damage.
    """
    records, aside, damage = list[tuple[str, Record]](), list[bytes](), list[str]()
    lines: dict[bytes, None] = {}
    last = FIRST
    written = path.read_bytes()
    for link in chain(written.splitlines(keepends=True)):
        place = f"{path}:{link.number}"
        if link.checksum is None or link.line in lines:
            aside.append(link.line.removesuffix(b"\n") + b"\n")
            damage += [] if is_torn_end(link.line) else [place]
            continue
        records.append((place, _decoded(link, place)))
        damage += [] if link.follows else [place]
        lines[link.line], last = None, link.checksum
    if aside or damage or (written and not written.endswith(b"\n")):
        with path.with_suffix(".damaged").open("ab") as side:
            side.writelines(aside)
            side.flush()
            os.fsync(side.fileno())
        chained, last = relinked(lines)
        replace_durably(path, chained)
    return _of_one_run(path, records, last, damage)


def is_record(line: bytes) -> bool:
    """Whether this line is complete: only its newline may be missing."""
    try:
        decode_line(line)
    except UsageError:
        return False
    return True


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item if isinstance(item, _FINITE) else _finite(item) for key, item in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return [_finite(item) for item in value] if isinstance(value, _LISTS) else value
