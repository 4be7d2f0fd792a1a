"""The page: what `page.html.j2` shows of a report, as plain values. Jinja escapes every one of them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench import __version__
from zbench.record.summary import ConfigSummary, obstacles
from zbench.report.answer import bound_text
from zbench.report.columns import DataTable, page_table
from zbench.report.html import charts, style
from zbench.report.html.content import Report
from zbench.report.relative import relative_tables
from zbench.report.table import warning_lines
from zbench.report.text import (
    failure_message,
    figure_text,
    label,
    outcome_text,
    plural,
    printable,
    started_text,
    throughput_text,
)
from zbench.spec.metrics import METRICS, VERDICTS

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent
_ID_LENGTH = 8


def render(report: Report, *, home: str = "", drawn: bool = True) -> str:
    """Return the whole page as HTML; it needs no network and no script.

    home: where the page of all runs is, for a link. drawn: False leaves the pictures out, not their figures.
    """
    return render_template(
        "page.html.j2",
        title=printable(report.source.sweep or report.source.name),
        facts=_facts(report),
        sections=charts.sections(report),
        table=_table(report),
        relative=relative_tables(report.relative) if report.relative is not None else [],
        warnings=warning_lines(report.summaries),
        failures=_failures(report),
        home=home,
        drawn=drawn,
    )


def table_html(table: DataTable[Any]) -> str:
    """Return a table alone, for notebooks."""
    return render_template("table.html.j2", table=table)


def render_template(name: str, **values: Any) -> str:
    """Return what a template of this folder becomes with these values and the style of all pages."""
    return (
        _environment()
        .get_template(name)
        .render(
            version=__version__,
            colours=style.variables(),
            drawing=style.drawing_sheet(),
            sheet=(_FOLDER / "page.css").read_text(encoding="utf-8"),
            **values,
        )
    )


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_FOLDER)
    return Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined)


def _facts(report: Report) -> list[tuple[str, str]]:
    """Return name and value of the facts at the top; the first has the whole width."""
    source, winner = report.source, report.winner
    counts = {verdict: sum(s.verdict == verdict for s in report.finished) for verdict in reversed(VERDICTS)}
    limit = report.limit("peak_device_bytes")
    shares = sorted(report.importance.items(), key=lambda item: -item[1])
    facts = {
        "Recommended" if report.ranking.tied else "Best configuration": _best(report, winner),
        "Measured under load": f"{load}; step times alone decide nothing"
        if (load := report.ranking.load)
        else "",
        "Throughput": throughput_text(winner) if winner else "",
        "Memory": _memory_of(winner) if winner else "",
        "Device memory limit": METRICS["peak_device_bytes"].format(limit) if limit is not None else "",
        "Configurations": f"{len(report.summaries)}, {len(report.finished)} of them measured",
        "Verdicts": ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "none",
        "Importance of keys in the search": ", ".join(f"{key} {share:.0%}" for key, share in shares),
        "Machine": machine_text(source.facts),
        "Run": ", ".join(source.run_ids) or source.name,
        "Commit": source.commit or "",
        "Branch": source.branch or "",
        "Started": started_text(source.started),
    }
    return [(name, printable(value)) for name, value in facts.items() if value]


def _best(report: Report, winner: ConfigSummary | None) -> str:
    if report.ranking.pending:
        return f"none yet: {plural(report.ranking.pending, 'configuration')} left to run"
    if winner is None:
        return "none is both correct and within the constraints"
    ranking = report.ranking
    bound = bound_text(winner, ranking)
    more = (
        f"; {ranking.tied}, recommended: {ranking.why}; worse than the best: {bound}" if ranking.tied else ""
    )
    return f"{label(winner)} (trial {winner.trial_id[:_ID_LENGTH]}{more})"


def _memory_of(summary: ConfigSummary) -> str:
    host = summary.number("peak_host_bytes")
    device = f"{figure_text(summary, 'peak_device_bytes')} device"
    return f"{device}, {figure_text(summary, 'peak_host_bytes')} host" if host else device


def machine_text(facts: Mapping[str, Any]) -> str:
    """Return a machine as a reader knows it: processor, GPUs, cores and torch."""
    cores, torch = facts.get("cores"), facts.get("torch")
    processors = [facts.get("cpu"), *(facts.get("gpus") or [])]
    parts = [*processors, cores and f"{cores} cores", torch and f"torch {torch}"]
    return ", ".join(str(part) for part in parts if part)


def _table(report: Report) -> DataTable[ConfigSummary]:
    """Return the configurations; a peak beyond the limit of the objective says so."""
    table = page_table(report.summaries, report.ranking)
    limit = report.limit("peak_device_bytes")

    def peak(size: float) -> str:
        return METRICS["peak_device_bytes"].format(size) + (" > limit" if limit and size > limit else "")

    columns = [
        replace(column, form=peak) if column.name == "peak_device_bytes" else column
        for column in table.columns
    ]
    count = plural(len(table.rows), "configuration")
    return replace(table, columns=columns, caption=f"{count}, the best first; spread is over repeats")


def _failures(report: Report) -> list[str]:
    failed = [summary for summary in report.summaries if summary.outcome != "ok"]
    ruled_out = [s for s in report.summaries if s.outcome == "ok" and obstacles(s, report.objective)]
    return [
        *(f"{outcome_text(s)}: {label(s)}: {failure_message(s) or 'no message'}" for s in failed),
        *(f"not the best: {label(s)}: {'; '.join(obstacles(s, report.objective))}" for s in ruled_out),
    ]
