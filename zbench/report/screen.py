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


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a column, and the side to which its cells are aligned.

    folds: long cells may be folded before a part such as `-> 2.1 s`, `[-1 %, +2 %]` or the next key.
    """

    name: str
    justify: Literal["left", "right"] = "right"
    folds: bool = False


_FOLD = re.compile(r"(?<=,) (?=\w+ \S)|(?<=->) | (?=[\[(])|(?<=[:;]) |(?<=fits) ")


def print_table(
    screen: Screen,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Text]],
    *,
    styles: Sequence[str] = (),
    dropped_first: Sequence[str] = (),
    kept: Sequence[str] = (),
    remedy: str = "use --json",
) -> None:
    """Print a table that loses no figure silently and breaks no value; a pipe or file gets every column.

    On a terminal that is too narrow, cells are folded, and then columns left out until the table fits: those
    of `dropped_first` in that order, then from the right all but the first and those of `kept`. A line below
    names them with the `remedy`. If nothing fits, each row is a paragraph of names and values. styles: of
    whole rows.
    """
    names = [column.name for column in columns]
    headings = [Text(re.sub("[ _.]", "\n", name) if screen.is_terminal else name) for name in names]
    cells = [[heading, *(row[i] for row in rows)] for i, heading in enumerate(headings)]
    shown = list(range(len(columns)))
    if screen.is_terminal and not _fits(screen, cells, shown):
        for of_column, column in zip(cells, columns, strict=True):
            of_column[1:] = [_folded(cell) if column.folds else cell for cell in of_column[1:]]
        dropped = _to_drop(names, dropped_first, kept)
        while dropped and not _fits(screen, cells, shown):
            shown.remove(dropped.pop(0))
    if not _fits(screen, cells, shown):
        _print_paragraphs(screen, names, rows, styles)
        return
    box, padding = (SIMPLE_HEAD, (0, 1, 0, 0)) if screen.is_terminal else (None, (0, 2, 0, 0))
    bold = "bold" if screen.is_terminal else ""
    table = Table(box=box, padding=padding, pad_edge=False, show_edge=False, header_style=bold)
    height = max(headings[i].plain.count("\n") for i in shown)
    for i in shown:
        above = "\n" * (
            height - headings[i].plain.count("\n")
        )  # the heading is at the bottom, cells at the top
        table.add_column(
            above + headings[i].plain,
            justify=columns[i].justify,
            no_wrap=True,
            width=_width(cells[i]),
        )
    for number in range(len(rows)):
        table.add_row(*(cells[i][1 + number] for i in shown), style=styles[number] if styles else "")
    screen.print(table)
    left_out = [name for i, name in enumerate(names) if i not in shown]
    if left_out:
        line = Text(f"no room for {', '.join(left_out)}: widen the terminal, or {remedy}", "dim")
        screen.print(line)


def _print_paragraphs(
    screen: Screen, names: Sequence[str], rows: Sequence[Sequence[Text]], styles: Sequence[str]
) -> None:
    """Print each row as names and values, where not even two columns fit or a pipe is narrow."""
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        labels = (Text(f"{name} ".lstrip(), "dim") for name in names)
        pairs = [Text.assemble(label, cell) for label, cell in zip(labels, row, strict=True)]
        screen.print(Text("  ").join(pairs), style=style)


def _to_drop(names: Sequence[str], dropped_first: Sequence[str], kept: Sequence[str]) -> list[int]:
    """Return the columns in the order in which they are left out."""
    first = next((i for i, name in enumerate(names) if name), 0)
    early = [names.index(name) for name in dropped_first if name in names]
    late = [i for i, name in reversed(list(enumerate(names))) if name and i != first and name not in kept]
    return list(dict.fromkeys([*early, *late]))


def _fits(screen: Screen, cells: Sequence[Sequence[Text]], shown: Sequence[int]) -> bool:
    return sum(_width(cells[i]) + 2 for i in shown) - 2 <= screen.width


def _width(cells: Iterable[Text]) -> int:
    return max(cell_len(line) for cell in cells for line in cell.plain.split("\n"))


def _folded(cell: Text) -> Text:
    """Return a cell with a line for each of its parts."""
    return Text(_FOLD.sub("\n", cell.plain), cell.style)
