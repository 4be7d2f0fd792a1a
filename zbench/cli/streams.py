"""The output streams of a command: text is encoded, known secrets are masked, a failed write is noticed.

`guarded` puts a `Stream` in the place of `sys.stdout` and `sys.stderr` while a command runs. Characters that
the terminal's encoding lacks are written as a near ASCII spelling or as an escape (`\\u2605`). So no encoding
and no name in a file can end a command.
"""

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from zbench.errors import ExitCode, ZbenchError, reason_of
from zbench.masking import without_known_values

_NEAREST = dict(zip("±·…×→★—–“”‘’▁▂▃▄▅▆▇█", "~-.x>*--\"\"''.:-=+*#%", strict=True))
_STANDARD = (0, 1, 2)


class OutputError(ZbenchError):
    """The result could not be written to stdout."""

    exit_code = ExitCode.USAGE


class Stream:
    """A text stream in front of another one. strict: a failed write raises OutputError, or is ignored."""

    def __init__(self, inner: TextIO, *, strict: bool) -> None:
        self._inner, self._strict = inner, strict

    def write(self, text: str) -> int:
        """Write text; what the encoding lacks is replaced."""
        with self._noticed():
            encoding = self._inner.encoding or "utf-8"
            shown = without_known_values(text, is_document=True)
            self._inner.write(shown.encode(encoding, "zbench.nearest").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the inner stream."""
        with self._noticed():
            self._inner.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextlib.contextmanager
    def _noticed(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._strict:
                reason = reason_of(error)
                raise OutputError(
                    f"cannot write the result to stdout: {reason}; records of finished trials are kept, see "
                    "`zbench list`"
                ) from None


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Guard stdout and stderr for the body; /dev/null takes the place of a missing stderr, not of stdout."""
    _hold_standard_descriptors()
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        out, err = (stream if stream is not None else sink for stream in before)
        sys.stdout = cast(TextIO, Stream(out, strict=True))
        sys.stderr = cast(TextIO, Stream(err, strict=False))
        try:
            if before[0] is None:
                sys.stdout = None
            yield
        finally:
            sys.stdout, sys.stderr = before


def require_stdout() -> None:
    """Raise OutputError before anything is measured where stdout is closed."""
    if sys.stdout is None:
        raise OutputError("cannot print the result: stdout is closed; redirect it to a file or to /dev/null")


def discard_stdout() -> None:
    """Redirect the rest of stdout to /dev/null, so that the flush at the end of the process cannot fail."""
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hold_standard_descriptors() -> None:
    """Open /dev/null where a standard stream is closed: else a result file gets its descriptor number."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def _nearest(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "registered for encoding only"
    lost = error.object[error.start : error.end]
    return "".join(_NEAREST.get(char) or char.encode("unicode_escape").decode() for char in lost), error.end


codecs.register_error("zbench.nearest", _nearest)
