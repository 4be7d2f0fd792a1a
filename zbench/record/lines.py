"""Records as JSON lines: one Record a line, chained by checksums; damage and newer formats are refused."""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from zbench.errors import UsageError
from zbench.record.documents import (
    FIRST,
    DamagedError,
    check_schema_version,
    linked,
    links_of,
    relinked,
    replace_durably,
)
from zbench.record.record import Record
from zbench.record.secrets import masked_record

_RECORD = TypeAdapter(Record)
_BLOCKS = {"workload", "run", "engine", "verify"}
_TRIAL_ID = re.compile(r"[0-9a-f]{1,64}")


def encode(record: Record, after: str = FIRST) -> bytes:
    """Return the record as one line of JSON, newline included. Non-finite floats become strings (`"inf"`),
    secrets are masked.

    after: the checksum of the line before (`documents.links_of`).
    """
    return linked(json.dumps(jsonable(masked_record(record)), separators=(",", ":")), after)


def encode_all(records: Iterable[Record]) -> bytes:
    """Return records as the lines of one file."""
    lines, after = list[bytes](), FIRST
    for record in records:
        lines.append(encode(record, after))
        after = checksum_of(lines[-1])
    return b"".join(lines)


def checksum_of(line: bytes) -> str:
    """Return the checksum that an intact line begins with."""
    links = links_of(line)
    assert links is not None
    return links[0]


def jsonable(record: Record) -> dict[str, Any]:
    """Return the record as values of strict JSON; `decode` reads them back."""
    return {key: _finite(value) for key, value in record.to_json().items()}


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


def decode_line(line: bytes, place: str = "record") -> Record:
    """Return the Record of one line; UsageError naming `place`, DamagedError if its checksum is wrong."""
    value = None
    if links_of(line) is not None:
        with contextlib.suppress(ValueError, RecursionError):  # RecursionError: nested too deeply
            value = json.loads(line)
    if value is None:
        raise DamagedError(
            f"{place}: damaged line, its checksum is wrong; resume the run, which sets the line aside and"
            " measures its repeat again, or remove the run"
        )
    return decode(value, place)


def read(path: Path) -> list[Record]:
    """Return the records of a `trials.jsonl`; a torn last line is left out, other damage is an error.

    A later line for the same trial and repeat replaces the earlier one, in the earlier one's place. All lines
    are of one run: the one that the directory is named after or, where it was renamed, that of the first.
    """
    numbered: list[tuple[int, Record]] = []
    after = FIRST
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip() or is_torn_end(line):
                continue
            numbered.append((number, decode_line(line, f"{path}:{number}")))
            after = _checked_link(line, after, f"{path}:{number}")
    runs, name = [record.run_id for _, record in numbered], path.resolve().parent.name
    run = name if name in runs else next(iter(runs), name)
    for number, record in numbered:
        if record.run_id != run:
            raise UsageError(f"{path}:{number}: a record of another run, {record.run_id}; remove the line")
    return list({(record.trial_id, record.repeat): record for _, record in numbered}.values())


def _checked_link(line: bytes, after: str, place: str) -> str:
    """Return a line's checksum; DamagedError if it does not come after the line with the checksum `after`."""
    links = links_of(line)
    assert links is not None
    if links[1] != after:
        raise DamagedError(
            f"{place}: the line before it is missing, or lines were doubled or exchanged; resume the run,"
            " which measures what is missing"
        )
    return links[0]


def is_torn_end(line: bytes) -> bool:
    """Whether a last line is what a kill during a write leaves: a part of a record, without a newline."""
    return not line.endswith(b"\n") and not is_record(line) and not is_record(line[:-1])


def set_damage_aside(path: Path) -> list[str]:
    """Move damaged and doubled lines to a side file; return where they, and gaps, were.

    The lines that stay are one chain then. An incomplete last line is left by a kill during a write, and is
    not reported as damage.
    """
    kept, aside, damaged = list[bytes](), list[bytes](), list[str]()
    known: set[bytes] = set()
    after: str | None = FIRST  # None: the line before was damaged
    written = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(written, start=1):
        place, links = f"{path}:{number}", links_of(line)
        if not line.strip():
            continue
        if links is None or line in known:
            aside.append(line.removesuffix(b"\n") + b"\n")
            damaged += [] if is_torn_end(line) else [place]
            after = None if links is None else after
            continue
        decode_line(line, place)
        damaged += [] if after in (None, links[1]) else [place]
        after = links[0]
        known.add(line)
        kept.append(relinked(line, checksum_of(kept[-1]) if kept else FIRST))
    if kept != written:
        with path.with_suffix(".damaged").open("ab") as side:
            side.writelines(aside)
            side.flush()
            os.fsync(side.fileno())
        replace_durably(path, b"".join(kept))
    return damaged


def is_record(line: bytes) -> bool:
    """Whether this line is complete: only its newline may be missing."""
    try:
        decode_line(line)
    except UsageError:
        return False
    return True


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
