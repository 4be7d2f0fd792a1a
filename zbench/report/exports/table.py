"""The comparison as a table for a terminal, the worst rows first."""

from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from zbench.analysis.compare import Comparison
from zbench.analysis.rows import ROW_ORDER, Row
from zbench.report.exports import texts
from zbench.report.screen import Column, Screen, plain, print_table
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


def print_comparison(comparison: Comparison, console: Screen, *, every_row: bool = False) -> None:
    """Print rows, reasons and summary; of many passing rows only the first unless `every_row`."""
    rows = sorted(comparison.rows, key=lambda row: ROW_ORDER.index(row.answer))
    passing = [row for row in rows if row.answer == "pass"]
    hidden = 0 if every_row else max(0, len(passing) - _MOST_PASSING)
    shown = rows[: len(rows) - hidden]
    lines = [Text(reason, style=_STYLES[answer]) for reason, answer in texts.grouped_reasons(shown)]
    if hidden:
        lines.append(Text(f"not shown: {plural(hidden, 'further configuration')} with `pass`; -v shows all"))
    console.print(plain(f"{comparison.base.name} -> {comparison.head.name}", "italic"), soft_wrap=True)
    columns = [Column(heading, "left", wraps=True) for heading in texts.headings(comparison.rate)]
    print_table(console, columns, [list(_cells(row, comparison.rate)) for row in shown])
    console.print(Group(*lines, *(Text(text) for text in texts.summary(comparison))))


def _cells(row: Row, rate: str) -> Iterator[Text]:
    for heading, text in zip(texts.headings(rate), texts.cells(row, rate), strict=True):
        yield Text(text, _STYLES[row.answer] if heading == "answer" else "")
