"""The console that reports are printed on, and its tables: no text is read as markup."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from zbench.report.columns import Column, DataTable
from zbench.report.roles import word
from zbench.report.text import printable, printable_lines


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


_HELD = "\ue000"
"""Stands for a space at which no line ends."""
_VALUE = re.compile(r"(?<=\d) (?=[KMGT]?i?B\b|%|m?s\b|us\b|days\b|\w+/s\b)")


def print_note(screen: Screen, text: Text) -> None:
    """Print a text whose lines on a terminal break no value, such as `30 MiB`; a pipe gets one line."""
    if not screen.is_terminal:
        screen.print(text, soft_wrap=True)
        return
    held = text.copy()
    held.plain = _VALUE.sub(_HELD, text.plain)
    for line in held.wrap(screen, screen.width):
        line.plain = line.plain.replace(_HELD, " ")
        screen.print(line)


_FOLD = re.compile(r"(?<=,) (?=\w+ \S)|(?<=->) | (?=[\[(])|(?<=[:;]) |(?<=fits) ")


_MARK, _TIED = "≈", "may be the best"


def print_table(
    screen: Screen,
    table: DataTable[Any],
    *,
    dropped_first: Sequence[str] = (),
    pinned: Sequence[str] = (),
    remedy: str = "use --json",
) -> None:
    """Print a table that loses no figure silently and breaks no value; a pipe or file gets every column.

    On a terminal that is too narrow, cells are folded, and then columns left out until the table fits. First
    go those that `dropped_first` names, in that order, then from the right all but the first and those that
    `pinned` names. A line below has their titles and the `remedy`. If nothing fits, each row is a paragraph
    of titles and values. A marked row is bold. A line below explains the titles that have a note.
    """
    columns = list(table.columns)
    rows = [[_cell(column, row) for column in columns] for row in table.rows]
    if any(table.marks):
        is_tied = any(_MARK in mark for mark in table.marks)
        columns = [Column("", str, left=True, note=_TIED if is_tied else ""), *columns]
        rows = [[Text(mark), *row] for mark, row in zip(table.marks, rows, strict=True)]
    titles = [column.title for column in columns]
    headings = [Text(re.sub("[ _.]", "\n", title) if screen.is_terminal else title) for title in titles]
    cells = [[heading, *(row[i] for row in rows)] for i, heading in enumerate(headings)]
    styles = ["bold" if mark else "" for mark in table.marks] or [""] * len(rows)
    shown = list(range(len(columns)))
    if screen.is_terminal and not _fits(screen, cells, shown):
        for of_column, column in zip(cells, columns, strict=True):
            of_column[1:] = [_folded(cell) if column.folds else cell for cell in of_column[1:]]
        dropped = _to_drop([column.name for column in columns], dropped_first, pinned)
        while dropped and not _fits(screen, cells, shown):
            shown.remove(dropped.pop(0))
    if not _fits(screen, cells, shown):
        _print_paragraphs(screen, titles, rows, styles)
        return
    box, padding = (SIMPLE_HEAD, (0, 1, 0, 0)) if screen.is_terminal else (None, (0, 2, 0, 0))
    bold = "bold" if screen.is_terminal else ""
    grid = Table(box=box, padding=padding, pad_edge=False, show_edge=False, header_style=bold)
    height = max(headings[i].plain.count("\n") for i in shown)
    for i in shown:
        above = "\n" * (height - headings[i].plain.count("\n"))  # headings are at the bottom
        grid.add_column(
            above + headings[i].plain,
            justify="left" if columns[i].left else "right",
            no_wrap=True,
            width=_width(cells[i]),
        )
    for number, style in enumerate(styles, start=1):
        grid.add_row(*(cells[i][number] for i in shown), style=style)
    screen.print(grid)
    notes = [f"{columns[i].title or _MARK}: {columns[i].note}" for i in shown if columns[i].note]
    if notes:
        print_note(screen, Text("; ".join(notes), "dim"))
    left_out = [title for i, title in enumerate(titles) if i not in shown]
    if left_out:
        line = Text(f"no room for {', '.join(left_out)}: widen the terminal, or {remedy}", "dim")
        screen.print(line)


def _cell(column: Column[Any], row: Any) -> Text:
    text = column.text(row)
    return Text(text, "dim" if column.quiet else "") if column.roles is None else word(text, column.roles)


def _print_paragraphs(
    screen: Screen, titles: Sequence[str], rows: Sequence[Sequence[Text]], styles: Sequence[str]
) -> None:
    """Print each row as titles and values, where not even two columns fit or a pipe is narrow.

    A line ends between two pairs, unless one pair alone is wider than the screen.
    """
    for row, style in zip(rows, styles, strict=True):
        line = Text()
        for title, cell in zip(titles, row, strict=True):
            pair = Text.assemble((f"{title} ".lstrip(), "dim"), cell)
            if line and line.cell_len + 2 + pair.cell_len > screen.width:
                screen.print(line, style=style)
                line = Text()
            line = Text.assemble(line, "  ", pair) if line else pair
        screen.print(line, style=style)


def _to_drop(names: Sequence[str], dropped_first: Sequence[str], pinned: Sequence[str]) -> list[int]:
    """Return the columns in the order in which they are left out."""
    first = next((i for i, name in enumerate(names) if name), 0)
    early = [names.index(name) for name in dropped_first if name in names]
    late = [i for i, name in reversed(list(enumerate(names))) if name and i != first and name not in pinned]
    return list(dict.fromkeys([*early, *late]))


def _fits(screen: Screen, cells: Sequence[Sequence[Text]], shown: Sequence[int]) -> bool:
    return sum(_width(cells[i]) + 2 for i in shown) - 2 <= screen.width


def _width(cells: Iterable[Text]) -> int:
    return max(cell_len(line) for cell in cells for line in cell.plain.split("\n"))


def _folded(cell: Text) -> Text:
    """Return a cell with a line for each of its parts."""
    return Text(_FOLD.sub("\n", cell.plain), cell.style)
