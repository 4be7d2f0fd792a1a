"""Masks values that look like secrets in the files of a run: its specification, records, logs and pages.

A secret is the value of a key, a variable or a flag whose name ends in a word such as `token` or `api_key`, a
password in a URL, a key of a known form, or the value of such a variable of this process.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.record.record import Record

MASK = "***"
_WORDS = (
    r"(?<!pad.)(?<![ebu][on][sk].)(?<!sep.)(?<!cls.)(?<!ask.)(?<!per.)token|secret|passw(?:or)?d|passphrase|credentials?"
    r"|(?:api|access|secret|private|auth)[-_]?key"
)
_NAME = rf"(?:[\w.-]{{0,60}}[-_.])?(?:{_WORDS})"
_IS_NAME = re.compile(_NAME, re.IGNORECASE)
_VALUE = r"(?=\S*[A-Za-z])[^\s\"',;&{}]{8,}"
_GIVEN = re.compile(
    rf"((?<![\w-])(?:{_NAME}[\"']?\s*[=:]\s*|--?{_NAME}\s+)[\"']?){_VALUE}"
    r"|(://[^\s/:@]+:)[^\s/@]+(?=@)"
    r"|\b(?:hf_|gh[pousr]_|glpat-|sk-|AKIA)[\w-]{16,}",
    re.IGNORECASE,
)
_SHORTEST = 8
_LONGEST_LOG = 64 << 20


def masked(value: Any, name: str = "") -> Any:
    """Return JSON values, or a text, without secrets. name: the key that holds the value."""
    if isinstance(value, Mapping):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if len(value) >= _SHORTEST and _IS_NAME.fullmatch(name):
        return MASK
    for variable, content in os.environ.items():
        if len(content) >= _SHORTEST and _IS_NAME.fullmatch(variable):
            value = value.replace(content, MASK)
    return _GIVEN.sub(lambda match: f"{match[1] or match[2] or ''}{MASK}", value)


def masked_record(record: Record) -> Record:
    """Return a record without the secrets of its configuration and messages."""
    error = record.error and replace(record.error, message=masked(record.error.message))
    values = {key: masked(getattr(record, key)) for key in ("axes", "config", "warnings")}
    return replace(record, error=error, **values)


def mask_files(folder: Path) -> None:
    """Mask the secrets in the files of a folder, such as the logs of a trial."""
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= _LONGEST_LOG:
            text = file.read_bytes().decode(errors="surrogateescape")
            if (clean := masked(text)) != text:
                file.write_bytes(clean.encode(errors="surrogateescape"))
