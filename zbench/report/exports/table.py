"""The comparison as a table for a terminal, the worst rows first."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from zbench.analysis.compare import ROW_ORDER, Comparison, Row
from zbench.report.exports import texts
from zbench.report.screen import Screen, plain
from zbench.report.text import plural

_STYLES = {
    "incorrect": "bold red",
    "failed": "red",
    "regression": "red",
    "suspected": "bold yellow",
    "unchecked": "yellow",
    "inconclusive": "yellow",
    "unmeasured": "dim",
    "pass": "green",
}
_MOST_PASSING = 60


def print_table(comparison: Comparison, console: Screen, *, every_row: bool = False) -> None:
    """Print rows, reasons and summary; of many passing rows only the first unless `every_row`."""
    rows = sorted(comparison.rows, key=lambda row: ROW_ORDER.index(row.answer))
    passing = [row for row in rows if row.answer == "pass"]
    hidden = 0 if every_row else max(0, len(passing) - _MOST_PASSING)
    shown = rows[: len(rows) - hidden]
    lines = [Text(reason, style=_STYLES[answer]) for reason, answer in texts.grouped_reasons(shown)]
    if hidden:
        lines.append(Text(f"not shown: {plural(hidden, 'further configuration')} with `pass`; -v shows all"))
    console.print(
        Group(_table(comparison, shown), *lines, *(Text(text) for text in texts.summary(comparison)))
    )


def _table(comparison: Comparison, rows: list[Row]) -> Table:
    title = plain(f"{comparison.base.name} -> {comparison.head.name}", "italic")
    table = Table(*texts.HEADINGS, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(
            *(
                Text(text, style=_STYLES[row.answer] if i == 1 else "")
                for i, text in enumerate(texts.cells(row))
            )
        )
    return table
