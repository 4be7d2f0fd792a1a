"""How a command prints: results to stdout, everything else to stderr, in colour if the stream supports it."""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.errors import UsageError
from zbench.report.text import printable_lines

if TYPE_CHECKING:
    from zbench.report.screen import Screen

_PIPE_WIDTH = 10_000
"""Columns of a pipe or file, where lines are not wrapped."""


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
    for flag in State.__slots__:
        setattr(state, flag, False)


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
    """Write a new file; UsageError if it exists or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already; name another file or remove it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); name another place") from None


def note(text: str) -> None:
    """Print a notice on stderr, unless -q is set."""
    if not state.quiet:
        _say(text)


def warn(text: str) -> None:
    """Print a warning on stderr; the command continues."""
    _say(text, f"{_painted('warning:', '33')} ")


def error(text: str) -> None:
    """Print why the command ends, on stderr."""
    _say(text, f"{_painted('error:', '1;31')} ")


def colored(stream: Any) -> bool:
    """Whether to write colour to this stream: a terminal, without NO_COLOR, --no-color and TERM=dumb."""
    wanted = not state.no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and bool(stream.isatty())


def rich_console(*, stderr: bool = False) -> "Screen":
    """Return a screen on stdout (or stderr) that honours the colour flags; wide when it is no terminal."""
    from zbench.report.screen import Screen

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns
    return Screen(stderr=stderr, no_color=not colored(stream), width=width)


def _painted(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colored(sys.stderr) else text


def _say(text: str, mark: str = "") -> None:
    print(f"{mark}{printable_lines(text)}", file=sys.stderr, flush=True)
