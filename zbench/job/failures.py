"""How a rank reports a failure, and how the launcher finds the cause among those of all ranks.

A rank that fails writes an error file beside the result and exits with 1. `first_failure` reads these files.
"""

import errno
import json
from pathlib import Path
from typing import Literal, get_args

from zbench import clocks
from zbench.errors import DamagedReferenceError, UnsupportedError, UsageError
from zbench.job.jobs import write_json
from zbench.record.record import Failure

NO_ROOM_STATUS = 74
"""Exit status of a rank that could not write its error file (EX_IOERR of sysexits.h)."""

Kind = Literal["reference", "usage", "unsupported", "storage", "oom", "crashed", "peer_lost"]
"""A damaged reference; bad input; a model that the engine cannot train; no room on a disk; out of memory;
anything else; another rank is gone."""

OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory",
    "outofmemoryerror", "bad_alloc",
)  # fmt: skip
"""Words, in lower case, of a library that could not allocate memory."""

_NO_THREAD = "can't start new thread"
NO_ROOM = ("No space left on device", "Disk quota exceeded")
_PEER_LOST = (
    "Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe",
    "Timed out waiting", "Timeout waiting", "Wait timeout", "Read timeout", "Application timeout",
    "Socket closed", "recvValue failed",
)  # fmt: skip
_LONGEST = 400
_LONGEST_ADVICE = 2000
_KINDS_BY_RANK_OF_CAUSE = get_args(Kind)


def error_path(result_path: str, rank: int | str) -> Path:
    """Return the error file of a rank, or of the reference ("reference")."""
    return Path(f"{result_path}.{rank}.error.json")


def write_error(result_path: str, rank: int | str, kind: str, message: str) -> None:
    """Write one rank's error file for the launcher. `kind` is one of `Kind`."""
    write_json(
        error_path(result_path, rank),
        {"kind": kind, "message": message, "rank": rank, "time": clocks.wall_time()},
    )


def first_failure(result_path: str, world_size: int) -> Failure | None:
    """Return the cause among the errors of the ranks: invalid input, a full disk, out-of-memory, then the
    earliest crash.

    The error of a rank that only lost its peer is returned if there is no other. `kind` is `oom`, `crashed`,
    `usage` for invalid input that only the worker could detect, `unsupported` for a model that the engine
    cannot train, `storage` for a full disk, or `reference` for a damaged reference. `log` is a file's name.
    None if no rank wrote an error.
    """
    paths = [error_path(result_path, rank) for rank in ["reference", *range(world_size)]]
    errors = [json.loads(path.read_text()) for path in paths if path.exists()]
    if not errors:
        return None
    cause = min(errors, key=lambda error: (_KINDS_BY_RANK_OF_CAUSE.index(error["kind"]), error["time"]))
    kind = "crashed" if cause["kind"] == "peer_lost" else cause["kind"]
    if cause["rank"] == "reference":
        return Failure(kind, cause["message"], "rank0.log")
    return Failure(kind, f"rank {cause['rank']}: {cause['message']}", f"rank{cause['rank']}.log")


def kind_of(error: BaseException) -> Kind:
    """Return what kind of failure an exception is, by its type or by the words that libraries use."""
    text = str(error)
    if isinstance(error, UnsupportedError):
        return "unsupported"
    if isinstance(error, UsageError):
        return "reference" if isinstance(error, DamagedReferenceError) else "usage"
    if _is_out_of_memory(error, text):
        return "oom"
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or any(words in text for words in NO_ROOM):
        return "storage"
    if any(words in text for words in _PEER_LOST):
        return "peer_lost"
    return "crashed"


def message_of(error: BaseException) -> str:
    """Return an error's message in one line, with its type if the message needs it.

    A UsageError keeps all lines: they may show what was expected.
    """
    if isinstance(error, UsageError):
        return _shortened(str(error).strip(), _LONGEST_ADVICE)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return _shortened(f"{name}: {lines[0]}" if lines else name, _LONGEST)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def report(error: BaseException, stem: str, who: int | str, message: str = "") -> int:
    """Write an error file for the launcher, if this rank has not written one. stem, who: see `error_path`.

    message: `message_of` the error, if not given.
    Returns the exit status: 1, or the status for a file that could not be written.
    """
    try:
        if not error_path(stem, who).exists():
            write_error(stem, who, kind_of(error), message or message_of(error))
    except OSError:
        return NO_ROOM_STATUS
    return 1


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | OSError):
        return False
    return _NO_THREAD in text or any(words in text.lower() for words in OUT_OF_MEMORY)
