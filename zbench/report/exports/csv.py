"""Comma-separated values, one line a configuration, plain numbers: for spreadsheets and data frames."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence

from zbench.analysis.compare import Comparison
from zbench.analysis.relative import Relative
from zbench.analysis.rows import Row
from zbench.report.relative import relative_document
from zbench.report.text import printable
from zbench.spec.metrics import STEP_TIMES

_COLUMNS = (
    "trial_id", "axes", "answer", "base_outcome", "head_outcome", "base_verdict", "head_verdict",
    *(f"{side}_{name}" for name in STEP_TIMES for side in ("base", "head")),
    "step_time_change", "change_low", "change_high", "p_value", "n_base", "n_head",
    "base_tokens_per_s", "head_tokens_per_s",
)  # fmt: skip


def render(comparison: Comparison) -> str:
    """Return a header and a line a configuration; missing figures are empty."""
    return table_text(columns(comparison), map(values, comparison.rows))


def table_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a header and a line a row; what is None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_safe(value) for value in row] for row in rows)
    return text.getvalue()


def render_relative(relative: Relative) -> str:
    """Return a header and a line for each configuration that has a counterpart."""
    documents = list(map(relative_document, relative.rows))
    texts = [
        {key: json.dumps(document[key], sort_keys=True) for key in ("axes", "against_axes")}
        for document in documents
    ]
    rows = [list((one | text).values()) for one, text in zip(documents, texts, strict=True)]
    return table_text(list(documents[0]), rows)


def columns(comparison: Comparison) -> list[str]:
    """Return the names of `values`."""
    metrics = [change.metric for change in comparison.rows[0].exact] if comparison.rows else []
    return [*_COLUMNS, *(f"{side}_{metric}" for metric in metrics for side in ("base", "head"))]


def values(row: Row) -> list[object]:
    """Return the figures of one configuration."""
    decision = row.step_time
    decided: list[object] = [""] * 6
    if decision is not None:
        bounds = [math.expm1(log) if math.isfinite(log) else "" for log in (decision.low, decision.high)]
        decided = [decision.change, *bounds, decision.p_value, decision.n_base, decision.n_head]
    return [
        row.base.trial_id, json.dumps(dict(row.base.axes), sort_keys=True, default=str), row.answer,
        row.base.outcome, row.head.outcome, row.base.verdict, row.head.verdict,
        *(side.number(name) for name in STEP_TIMES for side in (row.base, row.head)), *decided,
        row.base.number("tokens_per_s"), row.head.number("tokens_per_s"),
        *(value for change in row.exact for value in (change.base, change.head)),
    ]  # fmt: skip


def _safe(value: object) -> object:
    """Return text on one line that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
