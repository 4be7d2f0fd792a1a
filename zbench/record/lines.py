"""Records as JSON lines: one Record a line, valid JSON even for infinite ratios, newer formats refused."""

import json
import math
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from zbench.errors import UsageError
from zbench.record.record import SCHEMA_VERSION, Record

_RECORD = TypeAdapter(Record)
_BLOCKS = {"workload", "run", "engine", "verify"}


def encode(record: Record) -> bytes:
    """Return the record as one line of JSON, newline included. Non-finite floats become strings (`"inf"`)."""
    return json.dumps(jsonable(record), separators=(",", ":")).encode() + b"\n"


def jsonable(record: Record) -> dict[str, Any]:
    """Return the record as values that strict JSON can hold; `decode` reads them back."""
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
    for block in _BLOCKS & record.config.keys():
        if not isinstance(record.config[block], dict):
            raise UsageError(f"{place}: not a zbench record: config.{block}: expected an object")
    return record


def decode_line(line: bytes, place: str = "record") -> Record:
    """Return the Record of one JSON line; UsageError naming `place` if it is damaged."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        raise UsageError(f"{place}: damaged line, not JSON; remove the line to go on without it") from None
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

    A later line for the same trial and repeat replaces the earlier one, in the earlier one's place.
    """
    records: dict[tuple[str, int], Record] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip() or (not line.endswith(b"\n") and not is_record(line)):
                continue
            record = decode_line(line, f"{path}:{number}")
            records[record.trial_id, record.repeat] = record
    return list(records.values())


def torn_end(path: Path) -> bytes:
    """Return the bytes after the last newline of a file: what a kill in mid-write leaves."""
    return path.read_bytes().rpartition(b"\n")[2]


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
