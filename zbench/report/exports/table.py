"""The comparison as a table for a terminal, the worst rows first."""

from rich.console import Group
from rich.text import Text

from zbench.analysis.compare import Comparison
from zbench.analysis.rows import ROW_ORDER
from zbench.report.exports import texts
from zbench.report.roles import ANSWERS, role_of
from zbench.report.screen import Screen, plain, print_table


def print_comparison(comparison: Comparison, console: Screen) -> None:
    """Print rows, reasons and summary."""
    rows = sorted(comparison.rows, key=lambda row: ROW_ORDER.index(row.answer))
    reasons = texts.grouped_reasons(rows)
    lines = [Text(reason, role_of(answer, ANSWERS).terminal) for reason, answer in reasons]
    console.print(plain(f"{comparison.base.name} -> {comparison.head.name}", "italic"), soft_wrap=True)
    dropped = ("trial_id", "traffic", comparison.rate, "peak", "verdict", "mean_step_s")
    print_table(console, texts.table(comparison, rows), dropped_first=dropped, pinned=("answer", "change"))
    console.print(Group(*lines, *(Text(text) for text in texts.summary(comparison))))
