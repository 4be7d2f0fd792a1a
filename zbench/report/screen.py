"""The console that reports are printed on: text is text, whatever characters it holds."""

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from zbench.report.text import printable, printable_lines


class Screen(Console):
    """A Rich console without markup, emoji codes and highlighting that makes control characters visible.

    Functions that print take a Screen, so that a plain Console does not pass the type checker.
    """

    def __init__(
        self,
        file: IO[str] | None = None,
        *,
        stderr: bool = False,
        width: int | None = None,
        no_color: bool | None = None,
        force_terminal: bool | None = None,
        **settings: Any,
    ) -> None:
        """Take what `rich.console.Console` takes."""
        super().__init__(
            file=file, stderr=stderr, width=width, no_color=no_color, force_terminal=force_terminal,
            markup=False, emoji=False, highlight=False, **settings,
        )  # fmt: skip

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return a string as text, control characters visible before its width is measured."""
        return super().render_str(printable_lines(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is printed; a control character of a Text that nobody made printable is visible, too."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise for the command line to handle: Rich would exit with 1, which here means a regression."""
        raise BrokenPipeError


def plain(text: str, style: str = "") -> Text:
    """Return foreign text as one line of a report."""
    return Text(printable(text), style)
