"""The comparison as a table for a terminal, the worst rows first."""

from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from zbench.analysis.compare import Comparison
from zbench.analysis.rows import ROW_ORDER, Row, RowAnswer
from zbench.report.exports import texts
from zbench.report.roles import ANSWERS, role_of
from zbench.report.screen import Column, Screen, plain, print_table
from zbench.spec.metrics import RATES


def print_comparison(comparison: Comparison, console: Screen) -> None:
    """Print rows, reasons and summary."""
    rows = sorted(comparison.rows, key=lambda row: ROW_ORDER.index(row.answer))
    lines = [Text(reason, style=_style(answer)) for reason, answer in texts.grouped_reasons(rows)]
    console.print(plain(f"{comparison.base.name} -> {comparison.head.name}", "italic"), soft_wrap=True)
    columns = [Column(heading, "left", folds=True) for heading in texts.headings(comparison.rate)]
    figures = [list(_cells(row, comparison.rate)) for row in rows]
    dropped = ("trial", "traffic", RATES[comparison.rate], "peak memory", "verdict", "mean step")
    print_table(console, columns, figures, dropped_first=dropped, kept=("answer", "change"))
    console.print(Group(*lines, *(Text(text) for text in texts.summary(comparison))))


def _cells(row: Row, rate: str) -> Iterator[Text]:
    for heading, text in zip(texts.headings(rate), texts.cells(row, rate), strict=True):
        yield Text(text, _style(row.answer) if heading == "answer" else "")


def _style(answer: RowAnswer) -> str:
    return role_of(answer, ANSWERS).terminal
