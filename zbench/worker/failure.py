"""The kind of failure that an exception is, and its one line for the record. The launcher imports it, too."""

import errno
from typing import Literal

from zbench.errors import UsageError
from zbench.worker.job import NO_ROOM_STATUS, error_path, write_error

Kind = Literal["usage", "storage", "oom", "crashed", "peer_lost"]
"""Bad input; no room on a disk; out of memory; anything else; another rank is gone."""

_OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
)
_NO_THREAD = "can't start new thread"
_NO_ROOM = ("No space left on device", "Disk quota exceeded")
_PEER_LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")
_PEER_SILENT = (
    "Timed out waiting",
    "Timeout waiting",
    "Wait timeout",
    "Read timeout",
    "Socket closed",
    "recvValue failed",
    "Application timeout",
)
_LONGEST = 400
_LONGEST_ADVICE = 2000


def kind_of(error: BaseException) -> Kind:
    """Return what kind of failure an exception is, by its type or by the words that libraries use."""
    text = str(error)
    if isinstance(error, UsageError):
        return "usage"
    if _is_out_of_memory(error, text):
        return "oom"
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or any(words in text for words in _NO_ROOM):
        return "storage"
    if any(words in text for words in (*_PEER_LOST, *_PEER_SILENT)):
        return "peer_lost"
    return "crashed"


def message_of(error: BaseException) -> str:
    """Return one line: the error's own words, with its type where they do not explain themselves.

    A UsageError is told whole: it may show, over several lines, what was expected.
    """
    if isinstance(error, UsageError):
        return _shortened(str(error).strip(), _LONGEST_ADVICE)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return _shortened(f"{name}: {lines[0]}" if lines else name, _LONGEST)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def report(error: BaseException, stem: str, who: int | str) -> None:
    """Leave an error file for the launcher, unless this rank has left one. `stem`, `who`: see `error_path`.

    Where not even that can be written, raises SystemExit with a status that says so.
    """
    if error_path(stem, who).exists():
        return
    try:
        write_error(stem, who, kind_of(error), message_of(error))
    except OSError:
        raise SystemExit(NO_ROOM_STATUS) from error


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | OSError):
        return False
    return _NO_THREAD in text or any(words in text.lower() for words in _OUT_OF_MEMORY)
