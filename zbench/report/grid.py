"""A table that never loses a figure silently: it names the columns that a narrow terminal has no room for.

Where even the columns that must stay do not fit, each row becomes a block of `name value` entries.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.text import Text

from zbench.report.screen import Screen

_GAP = "  "
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Column:
    """The name of a column, and the side to which its cells are aligned."""

    name: str
    justify: Literal["left", "right"] = "right"


@dataclass(frozen=True, slots=True)
class GridRow:
    """The cells of one row, a mark before them, and the style of all."""

    cells: Sequence[Text]
    mark: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns and rows, as long as each other.

    optional: the names of columns that a narrow terminal drops, in this order.
    """

    columns: Sequence[Column]
    rows: Sequence[GridRow]
    optional: Sequence[str] = ()

    def fitted(self, screen: Screen) -> tuple[RenderableType, list[str]]:
        """Return what suits the screen, and the names of the columns that were left out.

        A pipe or file gets every column; blocks, too, where COLUMNS asks for narrower lines.
        """
        plain = not screen.is_terminal
        headings = [[column.name] if plain else _broken(column.name) for column in self.columns]
        widths = [self._width(index, heading) for index, heading in enumerate(headings)]
        shown = list(range(len(self.columns)))
        left_out: list[str] = []
        for dropped in [None, *([] if plain else self._optional())]:
            if dropped is not None:
                shown.remove(dropped)
                left_out.append(self.columns[dropped].name)
            layout = _Layout(self, [(index, widths[index], headings[index]) for index in shown], plain)
            if layout.width <= screen.width:
                return layout, left_out
        return self.blocks(screen.width), []

    def blocks(self, width: int) -> Group:
        """Return each row as a block of `name value` entries on lines of this width."""
        lines: list[Text] = []
        for row in self.rows:
            entries = [
                Text.assemble((f"{column.name} ", "dim"), cell)
                for column, cell in zip(self.columns, row.cells, strict=True)
                if cell.plain not in ("", "-")
            ]
            start = f"{row.mark} " if row.mark else ""
            for line in _packed(entries, width, start):
                line.stylize(row.style)
                lines.append(line)
        return Group(*lines)

    def _width(self, index: int, heading: Sequence[str]) -> int:
        """Return how wide a column is where nothing is cut."""
        return max([*(row.cells[index].cell_len for row in self.rows), *map(cell_len, heading)])

    def _optional(self) -> list[int]:
        places = {column.name: index for index, column in enumerate(self.columns)}
        return [places[name] for name in self.optional if name in places]


@dataclass(frozen=True)
class _Layout:
    """A table of some columns of a grid, each with its width and heading; plain: without lines and styles.

    Rich's Table measures and wraps every cell on its own, which takes most of the time of a table of
    thousands of rows; here nothing is wrapped.
    """

    grid: Grid
    shown: Sequence[tuple[int, int, Sequence[str]]]
    plain: bool

    @property
    def width(self) -> int:
        """The cells of a whole line."""
        return len(self._start) + sum(width for _, width, _ in self.shown) + len(_GAP) * (len(self.shown) - 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield headings and rows, line by line."""
        for line in self._lines():
            line.rstrip()
            text = Text(line.plain) if self.plain else line
            yield from text.render(console, end="\n")

    def _lines(self) -> Iterator[Text]:
        height = max(len(heading) for _, _, heading in self.shown)
        above = [[""] * (height - len(heading)) + list(heading) for _, _, heading in self.shown]
        yield from [] if self.plain else [Text()]
        for words in zip(*above, strict=True):
            yield self._line("", [Text(word) for word in words], "" if self.plain else "bold")
        yield from [] if self.plain else [Text(f" {'─' * (self.width - 1)}")]
        for row in self.grid.rows:
            yield self._line(row.mark, [row.cells[index] for index, _, _ in self.shown], row.style)
        yield from [] if self.plain else [Text()]

    def _line(self, mark: str, cells: Sequence[Text], style: str) -> Text:
        line = Text(f"{'' if self.plain else ' '}{mark}{_GAP}" if mark else self._start, style)
        for position, ((index, width, _), cell) in enumerate(zip(self.shown, cells, strict=True)):
            space = " " * (width - cell.cell_len)
            right = self.grid.columns[index].justify == "right"
            line.append(_GAP if position else "")
            line.append(space if right else "").append_text(cell).append("" if right else space)
        return line

    @cached_property
    def _start(self) -> str:
        """What a line without a mark begins with."""
        frame = "" if self.plain else " "
        return frame + (" " + _GAP if any(row.mark for row in self.grid.rows) else "")


def _packed(entries: Sequence[Text], width: int, start: str) -> list[Text]:
    """Return lines that each hold as many whole entries as fit; those after the first are indented."""
    lines = [Text(start)]
    empty = True
    for entry in entries:
        gap = "" if empty else "  "
        if not empty and lines[-1].cell_len + len(gap) + entry.cell_len > width:
            lines.append(Text(_INDENT))
            gap = ""
        lines[-1].append(gap).append_text(entry)
        empty = False
    return lines


def _broken(name: str) -> list[str]:
    return name.replace("_", " ").replace(".", " ").split(" ")
