"""GitHub-flavoured Markdown: a comparison for a step summary or a comment, a run for a README or an issue.

A comparison's first line marks the comment that the next one replaces.
"""

import re
from typing import TYPE_CHECKING, Any

from zbench.analysis.compare import Comparison
from zbench.analysis.rows import ROW_ORDER
from zbench.report.columns import Column, DataTable, page_table
from zbench.report.exports import texts
from zbench.report.relative import lonely_line, relative_tables
from zbench.report.roles import ANSWERS, role_of
from zbench.report.table import notes
from zbench.report.text import plural, printable

if TYPE_CHECKING:
    from zbench.analysis.relative import Relative
    from zbench.report.html.content import Report

MARKER = "<!-- zbench-compare -->"
_MOST_ROWS = 200


def render(comparison: Comparison) -> str:
    """Return a table of every configuration, the worst first, with reasons and method below."""
    rows = sorted(comparison.rows, key=lambda row: ROW_ORDER.index(row.answer))
    base, head = escape(comparison.base.name), escape(comparison.head.name)
    lines = [MARKER, f"### zbench: {base} → {head}", ""]
    first, *rest = texts.summary(comparison)
    lines += [f"**{escape(first)}**", ""]
    lines += table_lines(texts.table(comparison, rows[:_MOST_ROWS]))
    if len(rows) > _MOST_ROWS:
        lines += ["", f"Not listed: {plural(len(rows) - _MOST_ROWS, 'further configuration')}."]
    reasons = [f"- {escape(reason)}" for reason, _ in texts.grouped_reasons(rows[:_MOST_ROWS])]
    lines += ["", *([*reasons, ""] if reasons else []), *(f"- {escape(text)}" for text in rest)]
    return "\n".join(lines)


def render_run(report: "Report") -> str:
    """Return the configurations, the best first and in bold, what there is to say of them, and where they
    were measured.

    With `--relative-to` the tables of ratios take their place.
    """
    facts = report.source.facts
    machine = ", torch ".join(str(facts[key]) for key in ("cpu", "torch") if facts.get(key))
    source = f"Run {', '.join(report.source.run_ids) or report.source.name}; {machine}"
    lines = _configurations(report) if report.relative is None else _relative(report.relative)
    return "\n".join([*lines, "", escape(source)])


def _configurations(report: "Report") -> list[str]:
    below = [f"- {escape(line.plain)}" for line in notes(report.summaries, report.objective, report.ranking)]
    return [*table_lines(page_table(report.summaries, report.ranking)), "", *below]


def _relative(relative: "Relative") -> list[str]:
    """Return each relative table below its heading; the lines end with who has no counterpart."""
    lines = []
    for table in relative_tables(relative):
        lines += [f"**{escape(table.caption)}**", "", *table_lines(table), ""]
        lines += [escape(table.below), ""] if table.below else []
    return [*lines, escape(lonely_line(relative))]


def escape(text: str) -> str:
    """Return text that Markdown shows as it is: no tags, tables, links, mentions or emphasis."""
    flat = printable(" ".join(text.replace("->", "→").split()))
    named = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", named).replace("&\\#64;", "&#64;")


def table_lines(table: DataTable[Any]) -> list[str]:
    """Return the lines of a table; the first cell of the row that is best or recommended is bold."""
    marks = ["---" if column.left else "---:" for column in table.columns]
    lines = [list(map(escape, table.titles)), marks]
    for row, mark in zip(table.rows, table.marks or [""] * len(table.rows), strict=True):
        first, *others = (_cell(column, row) for column in table.columns)
        lines.append([f"**{first}**" if mark.endswith("*") else first, *others])
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(column: Column[Any], row: Any) -> str:
    text = column.text(row)
    sign = f"{role_of(text, ANSWERS).sign} " if column.roles is ANSWERS else ""
    return f"{sign}{escape(text)}"
