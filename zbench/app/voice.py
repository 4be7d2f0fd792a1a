"""What is said while something runs: notices and warnings on stderr, as loud as the caller wants."""

import os
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zbench.report.text import printable_lines

if TYPE_CHECKING:  # Rich is imported when something is drawn
    from zbench.report.screen import Screen

_PIPE_WIDTH = 10_000
"""Columns of a pipe or file, where lines are not wrapped."""


@dataclass(frozen=True, slots=True)
class Voice:
    """Says things on stderr. quiet: no notices and no progress; warnings and errors are always said.

    no_color: without colour, whatever the terminal supports.
    """

    quiet: bool = False
    no_color: bool = False

    def note(self, text: str) -> None:
        """Print a notice, unless it is quiet."""
        if not self.quiet:
            self._say(text)

    def warn(self, text: str) -> None:
        """Print a warning; what runs continues."""
        self._say(text, f"{self._painted('warning:', '33')} ")

    def error(self, text: str) -> None:
        """Print why something ends."""
        self._say(text, f"{self._painted('error:', '1;31')} ")

    def screen(self, *, stderr: bool = True) -> "Screen":
        """Return a screen that honours the colour flags; wide where the stream is no terminal."""
        from zbench.report.screen import Screen

        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns
        return Screen(stderr=stderr, no_color=not self._is_colored(stream), width=width)

    def _is_colored(self, stream: Any) -> bool:
        """Whether to write colour to this stream: a terminal, without NO_COLOR, `no_color` and TERM=dumb."""
        is_refused = self.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not is_refused and bool(stream.isatty())

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_colored(sys.stderr) else text

    def _say(self, text: str, mark: str = "") -> None:
        print(f"{mark}{printable_lines(text)}", file=sys.stderr, flush=True)
