"""JSON documents with a digest, and lines that are chained: a byte that has changed is noticed, not believed.

A document's first key, `digest`, is the SHA-256 (16 hexadecimal digits) of the bytes that follow that key.
A line's first key, `checksum`, is the CRC-32 of the bytes that follow it. Its second key, `after`, is the
checksum of the line before, so that lost, doubled and exchanged lines are noticed, too.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from zbench.errors import UsageError, reason_of
from zbench.record.record import SCHEMA_VERSION

T = TypeVar("T")

FIRST = "00000000"
"""What the first line of a file comes after."""

_DOCUMENT = re.compile(rb'\{(?:\n  )?"digest": ?"([0-9a-f]{16})",(.*)', re.DOTALL)
_LINE = re.compile(rb'\{"checksum":"([0-9a-f]{8})",("after":"([0-9a-f]{8})",(.*))', re.DOTALL)
_PAGE = re.compile(rb"(.*<!-- ([0-9a-f]*) )([0-9a-f]{16}) -->\n", re.DOTALL)
_DRAFT = re.compile(r".+\.[0-9a-f]{8}\.partial")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_OBJECT = TypeAdapter(dict[str, Any])


class DamagedError(UsageError):
    """A file or a line was changed since it was written, or is incomplete."""


def sealed(document: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Return a document (not empty) as JSON with its digest, and a newline at its end."""
    separators = None if indent else (",", ":")
    rest = json.dumps(document, indent=indent, separators=separators)[1:].encode() + b"\n"
    start = b"{" + rest[: len(rest) - len(rest.lstrip())]
    return b'%s"digest":%s"%s",%s' % (start, b" " * bool(indent), digest_of(rest).encode(), rest)


def digest_of(data: bytes) -> str:
    """Return the digest of a document's bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def read_json(path: Path, kind: TypeAdapter[T], remedy: str) -> T:
    """Return a sealed document, checked by its digest, its schema_version and its type.

    UsageError, which ends with the remedy, for a file that cannot be read, was changed, or is another one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason_of(error)}; {remedy}") from None
    require_seal(data, str(path), remedy)
    value = parsed(data, str(path))
    check_schema_version(value, str(path))
    del value["digest"]
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: {key}: {first['msg']}; {remedy}") from None


def require_seal(data: bytes, place: str, remedy: str) -> None:
    """Raise DamagedError, which ends with the remedy, unless these bytes are those that were sealed.

    A newer zbench may seal in another way: its documents are said to be newer, not damaged.
    """
    match = _DOCUMENT.fullmatch(data)
    if match is not None and digest_of(match[2]) == match[1].decode():
        return
    version = None
    with contextlib.suppress(UsageError):
        version = parsed(data, place).get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise DamagedError(
            f"{place} was written by a newer zbench (schema_version {version}; this one reads up to "
            f"{SCHEMA_VERSION}), or is damaged; update zbench, or {remedy}"
        )
    raise DamagedError(f"{place} is damaged: it is not what zbench wrote; {remedy}")


def sealed_page(page: bytes, source: str) -> bytes:
    """Return an HTML page with a last line: the digest of what it was made from, and its own."""
    page += b"<!-- %s " % source.encode()
    return page + digest_of(page).encode() + b" -->\n"


def page_source(page: bytes) -> str | None:
    """Return the digest of what a sealed page was made from; None for a page that was changed."""
    match = _PAGE.fullmatch(page)
    return match[2].decode() if match and digest_of(match[1]) == match[3].decode() else None


def parsed(data: str | bytes, place: str) -> dict[str, Any]:
    """Return a JSON object; UsageError that names the place for anything else, however deeply nested."""
    try:
        return _OBJECT.validate_python(json.loads(data))
    except RecursionError:
        raise UsageError(f"{place}: nested too deeply to be a document of zbench") from None
    except ValidationError:
        raise UsageError(f"{place}: expected a JSON object") from None
    except ValueError as error:
        raise UsageError(f"{place}: not JSON, or incomplete: {error}") from None


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


def linked(text: str, after: str) -> bytes:
    """Return a JSON object (not empty, on one line) as a line after the one with the checksum `after`."""
    return _linked(text[1:].encode(), after)


def relinked(lines: Iterable[bytes]) -> tuple[bytes, str]:
    """Return intact lines as one chain, and the checksum of its last line."""
    chained = list[bytes]()
    last = FIRST
    for line in lines:
        match = _LINE.fullmatch(line.removesuffix(b"\n"))
        assert match is not None
        chained.append(_linked(match[4], last))
        last = checksum_of(chained[-1])
    return b"".join(chained), last


def _linked(content: bytes, after: str) -> bytes:
    rest = b'"after":"%s",%s' % (after.encode(), content)
    return b'{"checksum":"%08x",%s\n' % (zlib.crc32(rest), rest)


def checksum_of(line: bytes) -> str:
    """Return the checksum that an intact line begins with."""
    return line[len(b'{"checksum":"') :][:8].decode()


class Link(NamedTuple):
    """A line of a chain. checksum: its own, None if it was changed. follows: whether it comes after the line
    before it, as far as that one is intact.
    """

    number: int
    line: bytes
    checksum: str | None
    follows: bool


def chain(lines: Iterable[bytes]) -> Iterator[Link]:
    """Yield the lines of a chain, numbered from 1, without empty ones; each is looked at once."""
    last: str | None = FIRST
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.removesuffix(b"\n"))
        if match is None or int(match[1], 16) != zlib.crc32(match[2]):
            last = None
            yield Link(number, line, None, follows=False)
        else:
            follows = last in (None, match[3].decode())
            last = match[1].decode()
            yield Link(number, line, last, follows)


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically, also if others write it at the same time; the new name is on disk, too."""
    with _draft(path, data) as draft:
        draft.replace(path)


def create_durably(path: Path, data: bytes) -> None:
    """Write a new file atomically; FileExistsError if there is one, also if another process just made it.

    A file system without hard links can only replace, so there two that write in one instant are not told
    apart.
    """
    with _draft(path, data) as draft:
        try:
            os.link(draft, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            draft.replace(path)


@contextlib.contextmanager
def _draft(path: Path, data: bytes) -> Iterator[Path]:
    """Yield a file beside `path` that has these bytes on disk; then write the names beside it to disk."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
        sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def drafts(place: Path, *folders: str) -> list[Path]:
    """Return what `replace_durably` leaves where it is killed, in these folders (patterns) of a place."""
    files = (file for folder in folders for file in place.glob(f"{folder}/*.partial"))
    return sorted(file for file in files if _DRAFT.fullmatch(file.name) and file.is_file())


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing; their names are on disk, too."""
    for place in reversed((path, *path.parents)):
        if not place.exists():
            place.mkdir(exist_ok=True)
            sync_directory(place.parent)


def sync_directory(path: Path) -> None:
    """Write the names in a directory to disk."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
