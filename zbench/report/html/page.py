"""The page: what `page.html.j2` shows of a report, as plain values. Jinja escapes every one of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench import __version__
from zbench.analysis.ranking import recommended_why
from zbench.record.record import VERDICT_ORDER
from zbench.record.summary import ConfigSummary, obstacles
from zbench.report.exports import texts
from zbench.report.html import charts, content, style
from zbench.report.html.content import Breakdown, Report
from zbench.report.html.drawing import Picture
from zbench.report.text import (
    CONFIGURATION_COLUMNS,
    bytes_text,
    configuration_cells,
    failure_message,
    label,
    outcome_text,
    plural,
    printable,
    rate_text,
    seconds_text,
    short_ids,
)

if TYPE_CHECKING:
    from jinja2 import Template

_FOLDER = Path(__file__).parent
_ID_LENGTH = 8
_PEAK, _VERDICT = (CONFIGURATION_COLUMNS.index(name) for name in ("peak device", "verdict"))


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of texts.

    badge: the column whose cells are a verdict or an answer. marks: what stands before each row, if anything.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    badge: int | None = None
    marks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A picture with its description, the figures behind it, and lines of text below."""

    picture: Picture
    note: str
    figures: TextTable | None = None
    table: TextTable | None = None
    listed: str = ""
    lines: Sequence[str] = ()
    ordered: bool = False


def render(report: Report) -> str:
    """Return the whole page as HTML; it needs no network and no script."""
    return _template().render(
        title=printable(report.source.sweep or report.source.name),
        facts=_facts(report),
        sections=list(_sections(report)),
        table=_table(report),
        failures=_failures(report),
        version=__version__,
        colours=style.variables(),
        drawing=style.drawing_sheet(),
        sheet=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        roles=style.VERDICTS | style.ANSWERS,
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_FOLDER)
    return Environment(
        loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined
    ).get_template("page.html.j2")


def _facts(report: Report) -> list[tuple[str, str, bool]]:
    """Return name and value of the facts at the top, and whether each needs the whole width."""
    source, winner = report.source, report.winner
    counts = {
        verdict: sum(s.verdict == verdict for s in report.finished) for verdict in reversed(VERDICT_ORDER)
    }
    limit = report.limit("peak_device_bytes")
    facts = {
        "Best configuration": _best(report, winner),
        "Throughput": f"{rate_text(winner.number('tokens_per_s'))} tokens/s" if winner else "",
        "Memory": _memory_of(winner) if winner else "",
        "Device memory limit": bytes_text(limit) if limit is not None else "",
        "Configurations": f"{len(report.summaries)}, {len(report.finished)} of them measured",
        "Verdicts": ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "none",
        "Machine": _machine(source.facts),
        "Run": ", ".join(source.run_ids) or source.name,
        "Commit": source.commit or "",
        "Started": source.started or "",
    }
    return [(name, printable(value), name == "Best configuration") for name, value in facts.items() if value]


def _best(report: Report, winner: ConfigSummary | None) -> str:
    if winner is None:
        return "none is both correct and within the constraints"
    equals = [s for s in report.summaries if s.trial_id in report.ranking.indistinguishable]
    more = ""
    if len(equals) > 1:
        more = f"; recommended {recommended_why(equals)}, one of {len(equals)} that cannot be told apart"
    return f"{label(winner)} (trial {winner.trial_id[:_ID_LENGTH]}{more})"


def _memory_of(summary: ConfigSummary) -> str:
    host = summary.number("peak_host_bytes")
    device = f"{bytes_text(summary.number('peak_device_bytes'))} device"
    return f"{device}, {bytes_text(host)} host" if host else device


def _machine(facts: Mapping[str, Any]) -> str:
    named = [facts.get("cpu"), *(facts.get("gpus") or [])]
    cores, torch = facts.get("cores"), facts.get("torch")
    parts = [
        *(str(name) for name in named if name),
        f"{cores} cores" if cores else "",
        f"torch {torch}" if torch else "",
    ]
    return ", ".join(part for part in parts if part)


def _sections(report: Report) -> list[Section]:
    pictures = content.pictures(report)
    drawn = report.finished[: content.MOST_ROWS]
    shown, total = len(drawn), len(report.finished)
    some = "" if shown == total else f" The first {shown} of {total} configurations are drawn."
    sections = []
    for name, picture in pictures.items():
        match name:
            case "throughput-memory":
                sections.append(_scatter(report, picture))
            case "changes":
                sections.append(_comparison(report, picture, some))
            case "memory":
                caption = "Bytes by category (host_: offloaded)"
                table = _parts(content.memory_rows(drawn), bytes_text, caption)
                sections.append(Section(picture, some, table))
            case "phases":
                table = _parts(content.phase_rows(drawn), seconds_text, "Phases of a step")
                sections.append(Section(picture, some, table))
            case "importance":
                sections.append(Section(picture, "", _importance(report)))
            case _:
                sections.append(Section(picture, some))
    return sections


def _scatter(report: Report, picture: Picture) -> Section:
    best = [
        f"{point.label}: {rate_text(point.tokens_per_s)} tokens/s, {bytes_text(point.peak_bytes)}"
        for point in charts.front_of(content.points(report))
    ]
    told = "No configuration is both faster and smaller than one on the dashed line:" if best else ""
    return Section(picture, "", listed=told, lines=best, ordered=True)


def _comparison(report: Report, picture: Picture, note: str) -> Section:
    comparison = report.comparison
    assert comparison is not None, "only a report with a comparison has this section"
    first, *rest = texts.summary(comparison)
    rows = [texts.cells(row) for row in comparison.rows]
    table = TextTable(first, texts.HEADINGS, rows, badge=1)
    reasons = [reason for reason, _ in texts.grouped_reasons(comparison.rows)]
    return Section(picture, note, table=table, lines=[*reasons, *rest])


def _parts(rows: Sequence[Breakdown], form: Callable[[float | None], str], caption: str) -> TextTable:
    names = content.part_names(parts for _, parts in rows)
    lines = [[label(summary), *(form(parts.get(name)) for name in names)] for summary, parts in rows]
    return TextTable(caption, ["configuration", *map(printable, names)], lines)


def _importance(report: Report) -> TextTable:
    lines = [[printable(axis), f"{share:.1%}"] for axis, share in report.importance.items()]
    return TextTable("Share of the objective's variation", ["axis", "share"], lines)


def _table(report: Report) -> TextTable:
    summaries = report.summaries
    limit = report.limit("peak_device_bytes")
    rows = []
    for summary, name in zip(summaries, short_ids(summaries), strict=True):
        peak = summary.number("peak_device_bytes")
        cells = configuration_cells(summary, name)
        if limit is not None and peak is not None and peak > limit:
            cells[_PEAK] += " > limit"
        rows.append(cells)
    caption = f"{plural(len(rows), 'configuration')}, the best first; spread is over repeats"
    signs = {"*": "★ ", "≈": "≈ "}
    marks = [signs.get(report.ranking.mark(summary.trial_id), "") for summary in summaries]
    return TextTable(caption, CONFIGURATION_COLUMNS, rows, badge=_VERDICT, marks=marks)


def _failures(report: Report) -> list[str]:
    failed = [summary for summary in report.summaries if summary.outcome != "ok"]
    ruled_out = [s for s in report.summaries if s.outcome == "ok" and obstacles(s, report.objective)]
    return [
        *(f"{outcome_text(s)}: {label(s)}: {failure_message(s) or 'no message'}" for s in failed),
        *(f"not the best: {label(s)}: {'; '.join(obstacles(s, report.objective))}" for s in ruled_out),
    ]
