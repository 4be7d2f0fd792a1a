"""GitHub-flavoured Markdown, for a step summary or a comment; its first line marks the comment to replace."""

import re

from zbench.analysis.compare import ROW_ORDER, Comparison, Row
from zbench.report.exports import texts
from zbench.report.printable import printable
from zbench.report.text import plural

MARKER = "<!-- zbench-compare -->"
_SIGNS = {
    "incorrect": "❌",
    "failed": "❌",
    "regression": "❌",
    "suspected": "⚠️",
    "unchecked": "❓",
    "inconclusive": "❓",
    "unmeasured": "➖",
    "pass": "✅",
}
_MOST_ROWS = 200


def render(comparison: Comparison) -> str:
    """Return a table of every configuration, the worst first, with reasons and method below."""
    rows = sorted(comparison.rows, key=lambda row: ROW_ORDER.index(row.answer))
    base, head = escape(comparison.base.name), escape(comparison.head.name)
    lines = [MARKER, f"### zbench: {base} → {head}", ""]
    first, *rest = texts.summary(comparison)
    lines += [f"**{escape(first)}**", ""]
    lines += ["| " + " | ".join(texts.HEADINGS) + " |", "|" + " --- |" * len(texts.HEADINGS)]
    lines += [_table_row(row) for row in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        lines += ["", f"Not listed: {plural(len(rows) - _MOST_ROWS, 'further configuration')}."]
    said = [f"- {escape(reason)}" for reason, _ in texts.grouped_reasons(rows[:_MOST_ROWS])]
    lines += ["", *([*said, ""] if said else []), *(f"- {escape(text)}" for text in rest)]
    return "\n".join(lines)


def _table_row(row: Row) -> str:
    label, answer, *others = texts.cells(row)
    shown = [escape(label), f"{_SIGNS[row.answer]} {answer}", *(escape(text) for text in others)]
    return "| " + " | ".join(shown) + " |"


def escape(text: str) -> str:
    """Return text that Markdown shows as it is: no tags, tables, links, mentions or emphasis."""
    flat = printable(" ".join(text.replace("->", "→").split()))
    named = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", named).replace("&\\#64;", "&#64;")
