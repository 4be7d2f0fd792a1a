"""How a command prints: results to stdout, everything else to stderr, in colour if the stream supports it."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.app.voice import Voice
from zbench.errors import SkippedRecordWarning, UsageError
from zbench.report.text import printable_lines

if TYPE_CHECKING:
    from zbench.report.screen import Screen


@dataclass(slots=True)
class State:
    """The common flags of this invocation; set by the option callbacks in `options`."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    document_printed: bool = False


state = State()


def reset() -> None:
    """Forget the flags of an earlier command in this process."""
    global state
    state = State()


def result(text: str) -> None:
    """Print a part of the result on stdout."""
    print(printable_lines(text))


def data(text: str) -> None:
    """Print machine-readable text (JSON, YAML, CSV, XML) on stdout; for a terminal, escape control codes."""
    print(printable_lines(text) if sys.stdout.isatty() else text)


def document(value: dict[str, Any], code: int = 0) -> None:
    """Print the one JSON document of a `--json` run on stdout; code: the command's exit code."""
    state.document_printed = True
    print(json.dumps({"schema_version": 1, **value, "exit_code": int(code)}), flush=True)


def write_new(path: Path, text: str) -> None:
    """Write a new file, whole or not at all; UsageError if it exists or cannot be written."""
    from zbench.record.documents import create_durably  # imports pydantic, which most messages do not need

    exists = f"{path} exists already; name another file or remove it"
    if os.path.lexists(path):  # before its directory is found to be one that cannot be written
        raise UsageError(exists)
    try:
        create_durably(path, text.encode())
    except FileExistsError:
        raise UsageError(exists) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); name another place") from None


def voice() -> Voice:
    """Return what says things on stderr, as loud as the flags say."""
    return Voice(state.quiet, state.no_color)


def note(text: str) -> None:
    """Print a notice on stderr, unless -q is set."""
    voice().note(text)


def warn(text: str) -> None:
    """Print a warning on stderr; the command continues."""
    voice().warn(text)


def error(text: str) -> None:
    """Print why the command ends, on stderr."""
    voice().error(text)


@contextlib.contextmanager
def skipped_records() -> Iterator[None]:
    """Print each record that the body skips as a warning, without the place in zbench's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", SkippedRecordWarning)
        others = warnings.showwarning

        def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
            if issubclass(category, SkippedRecordWarning):
                warn(str(message))
            else:
                others(message, category, *place, **more)

        warnings.showwarning = show
        yield


def rich_console() -> "Screen":
    """Return a screen on stdout."""
    return voice().screen(stderr=False)
