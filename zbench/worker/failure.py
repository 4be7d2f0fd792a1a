"""What kind of failure an exception is, and its one line for the record."""

import torch

from zbench.errors import UsageError

_OUT_OF_MEMORY = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "std::bad_alloc")
_NO_THREAD = "can't start new thread"
_PEER_LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")
_PEER_SILENT = (
    "Timed out waiting",
    "Read timeout",
    "Socket closed",
    "recvValue failed",
    "Application timeout",
)
_LONGEST = 400


def kind_of(error: BaseException) -> str:
    """Return `usage`, `oom`, `peer_lost` (another rank is gone) or `crashed`."""
    text = str(error)
    if isinstance(error, UsageError):
        return "usage"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        sign in text for sign in _OUT_OF_MEMORY
    ):
        return "oom"
    if isinstance(error, RuntimeError) and _NO_THREAD in text:
        return "oom"
    if any(sign in text for sign in (*_PEER_LOST, *_PEER_SILENT)):
        return "peer_lost"
    return "crashed"


def message_of(error: BaseException) -> str:
    """Return one line: the error's own words, with its type where they do not explain themselves."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if not isinstance(error, UsageError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
