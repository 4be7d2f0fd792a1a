"""Records and logs without secrets (`zbench.masking` says which values are secrets)."""

import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from zbench.masking import known_spellings, masked
from zbench.record.record import Record

_CHUNK = 8 << 20
_LONGEST_LINE = 64 << 20
"""Bytes that are masked at once: a log is a stream, and a longer line is cut."""

_KEY_BEGINS, _KEY_ENDS = "-----BEGIN ", "-----END "
_LONGEST_KEY = 1 << 20


def masked_record(record: Record) -> Record:
    """Return a record without the secrets of its configuration and messages."""
    error = record.error and replace(record.error, message=masked(record.error.message))
    values = {key: masked(getattr(record, key)) for key in ("axes", "config", "warnings")}
    return replace(record, error=error, **values)


def mask_files(folder: Path) -> None:
    """Mask the secrets in the files of a folder, such as the logs of a trial."""
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            _mask_file(file)


def _mask_file(file: Path) -> None:
    """Replace a file if it has a secret; its masked copy is written piece by piece."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}.partial")
    try:
        with file.open("rb") as source, draft.open("wb") as target:
            os.chmod(draft, file.stat().st_mode & 0o777)
            has_secret = False
            for piece in _pieces(source):
                clean = masked(piece)
                has_secret |= clean != piece
                target.write(clean.encode(errors="surrogateescape"))
        if has_secret:
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _pieces(file: BinaryIO) -> Iterator[str]:
    """Yield a text in pieces of whole lines; no piece ends within a known secret or a private key."""
    data = b""
    while chunk := file.read(_CHUNK):
        data += chunk
        text = data.decode(errors="surrogateescape")
        if end := _end_of_piece(text):
            yield text[:end]
            data = text[end:].encode(errors="surrogateescape")
    yield data.decode(errors="surrogateescape")


def _end_of_piece(text: str) -> int:
    """Return where a piece of a text may end; 0 if more of the text is needed."""
    end = max(text.rfind(mark) for mark in "\n\r") + 1
    if end == 0 and len(text) > _LONGEST_LINE:
        end = max(text.rfind(mark) for mark in " \t,;") + 1 or len(text)
    begin = text.rfind(_KEY_BEGINS, 0, end)
    if begin != -1 and text.find(_KEY_ENDS, begin, end) == -1 and end - begin < _LONGEST_KEY:
        end = begin
    for spelling in known_spellings():
        begin = text.rfind(spelling, max(end - len(spelling) + 1, 0), end + len(spelling) - 1)
        if begin != -1 and begin < end < begin + len(spelling):
            end = begin
    return end
