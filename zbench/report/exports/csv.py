"""Comma-separated values, one line a configuration, plain numbers: for spreadsheets and data frames."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from zbench.analysis.compare import Comparison
from zbench.analysis.ranking import Ranking
from zbench.analysis.relative import Relative
from zbench.analysis.rows import Row
from zbench.report.exports import document
from zbench.report.relative import relative_documents
from zbench.report.text import printable


def render(comparison: Comparison) -> str:
    """Return a header and a line a configuration; missing figures are empty."""
    return table_text(list(map(flat, comparison.rows)))


def render_relative(relative: Relative) -> str:
    """Return a header and a line for each configuration that has a counterpart."""
    return table_text(list(map(_plain, relative_documents(relative))))


def render_effects(ranking: Ranking) -> str:
    """Return a header and a line for each choice with what it costs."""
    return table_text([_plain(effect.document()) for effect in ranking.effects])


def table_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a header of all columns and a line a row; what is None or missing is empty."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_safe, columns))
    writer.writerows([_safe(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def flat(row: Row) -> dict[str, Any]:
    """Return one configuration as the JSON has it, in columns: base's mean_step_s is `base_mean_step_s`."""
    figures = document.row(row)
    columns = {key: figures[key] for key in ("trial_id", "axes", "answer")}
    for part in ("base", "head", "step_time"):
        columns |= {f"{part}_{key}": value for key, value in (figures[part] or {}).items()}
    for change in figures["exact"]:
        columns |= {f"{side}_{change['metric']}": change[side] for side in ("base", "head")}
    return _plain(columns)


def _plain(columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns with mappings as JSON, equal ones as equal texts."""
    return {
        key: json.dumps(value, sort_keys=True, default=str) if isinstance(value, dict) else value
        for key, value in columns.items()
    }


def _safe(value: object) -> object:
    """Return text on one line that no spreadsheet takes for a formula, and no CI log for a command."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "::")) else text
