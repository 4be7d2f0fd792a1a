"""The console that reports are printed on, and its tables: no text is read as markup."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from zbench.report.html.style import OUTCOMES, VERDICTS
from zbench.report.text import printable, printable_lines

COLOURS = {"good": "green", "fine": "green", "warn": "bold yellow", "bad": "bold red", "none": "dim"}
"""Of what a report calls a verdict, an outcome or an answer (`zbench.report.html.style`)."""


class Screen(Console):
    """A Rich console without markup, emoji codes and highlighting that makes control characters visible.

    Functions that print take a Screen, so that a plain Console does not pass the type checker.
    """

    def __init__(self, **settings: Any) -> None:
        """Accept the keyword arguments of `rich.console.Console`."""
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

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


def word(verdict_or_outcome: str) -> Text:
    """Return a verdict, or how a trial ended, in its colour."""
    return Text(verdict_or_outcome, COLOURS[(VERDICTS | OUTCOMES)[verdict_or_outcome]])


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a column, the side to which its cells are aligned, and whether they may wrap."""

    name: str
    justify: Literal["left", "right"] = "right"
    wraps: bool = False

    def width(self, cells: Iterable[Text]) -> int:
        """Return how wide the column is at least."""
        separator = None if self.wraps else "\n"
        return max(cell_len(part) for cell in cells for part in cell.plain.split(separator))


def print_table(
    screen: Screen,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Text]],
    *,
    styles: Sequence[str] = (),
    dropped_first: Sequence[str] = (),
    remedy: str = "",
) -> None:
    """Print a table that loses no figure silently; a pipe or file gets every column.

    On a terminal that is too narrow, columns of `dropped_first` are left out in that order until the table
    fits; a line below names them with the `remedy`. If the other columns do not fit either, each row is a
    paragraph of names and values. styles: of whole rows.
    """
    headings = [re.sub("[ _.]", "\n", c.name) if screen.is_terminal else c.name for c in columns]
    cells = [[Text(heading), *(row[i] for row in rows)] for i, heading in enumerate(headings)]
    widths = [column.width(of_column) for column, of_column in zip(columns, cells, strict=True)]
    names = [column.name for column in columns]
    optional = [name for name in dropped_first if name in names] if screen.is_terminal else []
    for count in range(len(optional) + 1):
        shown = [i for i, name in enumerate(names) if name not in optional[:count]]
        free = screen.width - sum(widths[i] for i in shown) - 2 * (len(shown) - 1)
        if free >= 0:
            break
    else:
        for row, style in zip(rows, styles or [""] * len(rows), strict=True):
            labels = (Text(f"{name} ".lstrip(), "dim") for name in names)
            pairs = [Text.assemble(label, cell) for label, cell in zip(labels, row, strict=True)]
            screen.print(Text("  ").join(pairs), style=style)
        return
    box, padding = (SIMPLE_HEAD, (0, 1, 0, 0)) if screen.is_terminal else (None, (0, 2, 0, 0))
    bold = "bold" if screen.is_terminal else ""
    table = Table(box=box, padding=padding, pad_edge=False, show_edge=False, header_style=bold)
    for i in shown:
        side, whole = columns[i].justify, not columns[i].wraps
        more = min(free, Column("").width(cells[i]) - widths[i])  # rich's own shares may not fit
        widths[i], free = widths[i] + more, free - more
        table.add_column(headings[i], justify=side, vertical="bottom", no_wrap=whole, width=widths[i])
    for number, row in enumerate(rows):
        table.add_row(*(row[i] for i in shown), style=styles[number] if styles else "")
    screen.print(table)
    if count:
        left_out = ", ".join(optional[:count])
        screen.print(Text(f"no room for {left_out}: widen the terminal, or {remedy}", "dim"))
