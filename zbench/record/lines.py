"""Records as JSON lines: one Record a line, with a checksum; damage and newer formats are refused."""

import contextlib
import json
import math
import os
import re
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from zbench.errors import UsageError
from zbench.record.record import SCHEMA_VERSION, Record
from zbench.record.secrets import masked_record

_RECORD = TypeAdapter(Record)
_BLOCKS = {"workload", "run", "engine", "verify"}
_TRIAL_ID = re.compile(r"[0-9a-f]{1,64}")
_LINE = re.compile(rb'\{"checksum":"([0-9a-f]{8})",(.*)', re.DOTALL)


class DamagedLineError(UsageError):
    """A line is damaged: incomplete, or changed since it was written."""


def encode(record: Record) -> bytes:
    """Return the record as one line of JSON, newline included. Non-finite floats become strings (`"inf"`),
    secrets are masked.

    Its first key, `checksum`, is the CRC-32 of all bytes that follow that key, without the newline.
    """
    text = json.dumps(jsonable(masked_record(record)), separators=(",", ":"))[1:].encode()
    return b'{"checksum":"%08x",%s\n' % (zlib.crc32(text), text)


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
    """Return the Record of one line; UsageError naming `place`, DamagedLineError if its checksum is wrong."""
    match = _LINE.fullmatch(line.removesuffix(b"\n"))
    value = None
    if match is not None and int(match[1], 16) == zlib.crc32(match[2]):
        with contextlib.suppress(ValueError, RecursionError):  # RecursionError: nested too deeply
            value = json.loads(line)
    if value is None:
        raise DamagedLineError(
            f"{place}: damaged line, its checksum is wrong; resume the run, which sets the line aside and"
            " measures its repeat again, or remove the line"
        )
    return decode(value, place)


def check_schema_version(value: object, place: str) -> None:
    """Raise UsageError unless `value` is a mapping whose schema_version this zbench reads."""
    version = value.get("schema_version") if isinstance(value, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise UsageError(f"{place}: expected a JSON object with a schema_version, as zbench writes it")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{place}: written by a newer zbench (schema_version {version}; this one reads up to "
            f"{SCHEMA_VERSION}); update zbench to read it"
        )


def read(path: Path) -> list[Record]:
    """Return the records of a `trials.jsonl`; a torn last line is left out, damage elsewhere is an error.

    A later line for the same trial and repeat replaces the earlier one, in the earlier one's place. All lines
    are of one run: the one that the directory is named after or, where it was renamed, that of the first.
    """
    numbered: list[tuple[int, Record]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip() or (not line.endswith(b"\n") and not is_record(line)):
                continue
            numbered.append((number, decode_line(line, f"{path}:{number}")))
    runs, name = [record.run_id for _, record in numbered], path.resolve().parent.name
    run = name if name in runs else next(iter(runs), name)
    for number, record in numbered:
        if record.run_id != run:
            raise UsageError(f"{path}:{number}: a record of another run, {record.run_id}; remove the line")
    return list({(record.trial_id, record.repeat): record for _, record in numbered}.values())


def set_damage_aside(path: Path) -> list[str]:
    """Move damaged lines to a side file; return where they were. The file then ends in a newline.

    An incomplete last line is left by a kill during a write, and is not reported as damage.
    """
    kept, aside, damaged = [], [], []
    with path.open("rb") as file:
        written = file.readlines()
    for number, line in enumerate(written, start=1):
        try:
            if line.strip():
                decode_line(line, f"{path}:{number}")
            kept.append(line.removesuffix(b"\n") + b"\n")
        except DamagedLineError:
            aside.append(line.removesuffix(b"\n") + b"\n")
            damaged += [f"{path}:{number}"] * line.endswith(b"\n")
    if kept != written:
        with path.with_suffix(".damaged").open("ab") as side:
            side.writelines(aside)
        replace_durably(path, b"".join(kept))
    return damaged


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically, also if others write it at the same time."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        write_durably(draft, data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that it survives a crash of the machine."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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
