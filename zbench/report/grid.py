"""A table that never loses a figure silently: it names the columns that a narrow terminal has no room for.

Where even the columns that must stay do not fit, each row becomes a block of `name value` entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from zbench.report.screen import Screen

_UNBOUNDED = 10_000
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Column:
    """A column; of those with an `optional` number a narrow terminal drops the one with the largest first."""

    name: str
    justify: Literal["left", "right"] = "right"
    optional: int = 0


@dataclass(frozen=True, slots=True)
class GridRow:
    """The cells of one row, a mark before them, and the style of all."""

    cells: Sequence[Text]
    mark: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns and rows, as long as each other."""

    columns: Sequence[Column]
    rows: Sequence[GridRow]

    def fitted(self, screen: Screen) -> tuple[RenderableType, list[str]]:
        """Return what suits the screen, and the names of the columns that were left out.

        A pipe or file gets every column; blocks, too, where COLUMNS asks for narrower lines.
        """
        if not screen.is_terminal:
            whole = self.table(range(len(self.columns)), plain=True)
            return (whole if self._width(screen, whole) <= screen.width else self.blocks(screen.width)), []
        shown = list(range(len(self.columns)))
        left_out: list[str] = []
        for dropped in [None, *self._optional()]:
            if dropped is not None:
                shown.remove(dropped)
                left_out.append(self.columns[dropped].name)
            table = self.table(shown, plain=False)
            if self._width(screen, table) <= screen.width:
                return table, left_out
        return self.blocks(screen.width), []

    def table(self, shown: Sequence[int], *, plain: bool) -> Table:
        """Return a table of these columns; plain: no lines and headings of one line."""
        padding = (0, 2 if plain else 1, 0, 0)
        frame = None if plain else box.SIMPLE_HEAD
        table = Table(box=frame, header_style="bold", padding=padding, pad_edge=False)
        marked = any(row.mark for row in self.rows)
        if marked:
            table.add_column("", no_wrap=True)
        for index in shown:
            column = self.columns[index]
            heading = column.name if plain else _broken(column.name)
            table.add_column(Text(heading), justify=column.justify, no_wrap=True)
        for row in self.rows:
            marks = [Text(row.mark)] if marked else []
            table.add_row(*marks, *(row.cells[index] for index in shown), style=row.style)
        return table

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

    def _width(self, screen: Screen, table: Table) -> int:
        """Return how wide a table is where nothing is cut."""
        return Measurement.get(screen, screen.options.update(max_width=_UNBOUNDED), table).maximum

    def _optional(self) -> list[int]:
        numbered = [index for index, column in enumerate(self.columns) if column.optional]
        return sorted(numbered, key=lambda index: -self.columns[index].optional)


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


def _broken(name: str) -> str:
    return name.replace("_", "\n").replace(".", "\n").replace(" ", "\n")
