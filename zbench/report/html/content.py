"""What a report shows, taken from its records: the pictures and the figures behind them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zbench.analysis.compare import Comparison
from zbench.analysis.ranking import Ranking, rank_run
from zbench.analysis.relative import Relative
from zbench.analysis.trials import RunResults, Source
from zbench.errors import UsageError
from zbench.record.summary import ConfigSummary, known_rate, obstacles
from zbench.report.exports import texts
from zbench.report.html import charts
from zbench.report.html.charts import ChartRow, Parts, Point
from zbench.report.html.drawing import Picture
from zbench.report.table import ranked
from zbench.report.text import (
    bytes_text,
    label,
    outcome_text,
    printable,
    seconds_text,
    short_label,
    sparkline,
    throughput_text,
)
from zbench.spec.load import recorded_objective
from zbench.spec.metrics import RATES
from zbench.spec.sweep import ObjectiveSpec, SweepSpec

MOST_ROWS = 40
"""Charts with a row per configuration draw this many; the table has all."""

MOST_POINTS = 200

_MEMORY_NAMES = {"peak_device_bytes": "peak device memory", "peak_host_bytes": "peak host memory",
                 "peak_rss_bytes": "peak resident set"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report is made of; `summaries` are in the order of the table, the best first.

    winner: the best or, where several cannot be told apart, the recommended one of them.
    """

    source: Source
    summaries: Sequence[ConfigSummary]
    objective: ObjectiveSpec
    winner: ConfigSummary | None = None
    comparison: Comparison | None = None
    importance: Mapping[str, float] = field(default_factory=dict)
    ranking: Ranking = field(default_factory=Ranking)
    relative: Relative | None = None

    @property
    def finished(self) -> list[ConfigSummary]:
        """Return the configurations with a measured step time."""
        return [summary for summary in self.summaries if summary.values("median_step_s")]

    @property
    def drawn(self) -> list[ConfigSummary]:
        """Return the configurations that have a row in the charts."""
        return self.finished[:MOST_ROWS]

    @property
    def drawn_note(self) -> str:
        """Return a sentence where some configurations are not drawn."""
        drawn, total = len(self.drawn), len(self.finished)
        return "" if drawn == total else f" The first {drawn} of {total} configurations are drawn."

    def row(self, summary: ConfigSummary) -> ChartRow:
        """Return the labels and the hover text of a configuration's row."""
        return ChartRow(label(summary), short_label(summary), hover_text(summary, self.objective))

    @property
    def memory_metric(self) -> str | None:
        """Return the peak by which configurations compare: of the device, else of the host or process."""
        return next((name for name in _MEMORY_NAMES if any(s.values(name) for s in self.finished)), None)

    def limit(self, metric: str | None) -> float | None:
        """Return the largest value of a metric that the objective allows, None where it sets no limit."""
        bounds = [
            float(constraint.bound)
            for constraint in self.objective.constraints
            if constraint.metric == metric and constraint.operator in ("<=", "<")
        ]
        return min(bounds, default=None)


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
    """A picture with a note on what it leaves out, the figures behind it, and lines of text below.

    listed: the heading of the lines, which are then numbered.
    """

    picture: Picture
    note: str = ""
    figures: TextTable | None = None
    table: TextTable | None = None
    listed: str = ""
    lines: Sequence[str] = ()


def sections(report: Report) -> list[Section]:
    """Return every picture that the records have something for, with its figures, in the page's order."""
    builders = (_scatter, _changes, _step_times, _memory, _phases, _importance)
    return [section for build in builders if (section := build(report)) is not None]


def pictures(report: Report) -> dict[str, Picture]:
    """Return the pictures of all sections by name."""
    return {section.picture.name: section.picture for section in sections(report)}


def points(report: Report) -> list[Point]:
    """Return the configurations of the scatter chart."""
    metric = report.memory_metric
    if metric is None:
        return []
    shown, name = [], known_rate(report.finished)
    for summary in report.finished:
        peak, rate = summary.number(metric), summary.number(name)
        if peak is not None and rate is not None:
            chosen = summary.trial_id == report.ranking.recommended
            why, hover = tuple(obstacles(summary, report.objective)), hover_text(summary, report.objective)
            text, repeats = throughput_text(summary), summary.values(name)
            point = Point(label(summary), peak, rate, summary.verdict, why, hover, text, chosen, repeats)
            shown.append(point)
    return shown


def _scatter(report: Report) -> Section | None:
    shown, metric = points(report), report.memory_metric
    if not shown or metric is None:
        return None
    limit = report.limit(metric)
    units, tied = (_MEMORY_NAMES[metric], RATES[known_rate(report.finished)]), report.ranking.tied
    picture = charts.throughput_against_memory(shown[:MOST_POINTS], *units, limit, tied)
    front = [
        f"{point.label}: {point.throughput}, {bytes_text(point.peak_bytes)}"
        for point in charts.front_of(shown)
    ]
    listed = "No configuration is both faster and smaller than one on the dashed line:" if front else ""
    return Section(picture, listed=listed, lines=front)


def _changes(report: Report) -> Section | None:
    comparison = report.comparison
    if comparison is None or not comparison.timed:
        return None
    first, *rest = texts.summary(comparison)
    rows = [texts.cells(row, comparison.rate) for row in comparison.rows]
    table = TextTable(first, texts.headings(comparison.rate), rows, badge=1)
    reasons = [reason for reason, _ in texts.grouped_reasons(comparison.rows)]
    picture = charts.changes(comparison, comparison.timed[:MOST_ROWS])
    return Section(picture, report.drawn_note, table=table, lines=[*reasons, *rest])


def _step_times(report: Report) -> Section | None:
    rows = [(report.row(s), _steps(s), s.values("median_step_s")) for s in report.drawn]
    return Section(charts.step_times(rows), report.drawn_note) if rows else None


def _steps(summary: ConfigSummary) -> list[float]:
    """Return every timed step of every finished repeat, in seconds."""
    timings = [record.timing for record in summary.ok if record.timing is not None]
    return [seconds for timing in timings for seconds in timing.step_seconds or [timing.median_step_s]]


def _memory(report: Report) -> Section | None:
    rows = [(report.row(summary), categories(summary)) for summary in report.drawn]
    rows = [(row, parts) for row, parts in rows if sum(parts.values()) > 0]
    if not rows:
        return None
    picture = charts.memory(rows, report.limit("peak_device_bytes"))
    return Section(
        picture, report.drawn_note, _parts_table(rows, bytes_text, "Bytes by category (host_: offloaded)")
    )


def categories(summary: ConfigSummary) -> dict[str, float]:
    """Return bytes by category at the peak, the largest over the repeats that counted them."""
    largest: dict[str, float] = {}
    for record in summary.ok:
        for name, size in (record.memory.by_category if record.memory is not None else {}).items():
            largest[name] = max(float(size), largest.get(name, 0.0))
    return largest


def _phases(report: Report) -> Section | None:
    rows = [(report.row(s), s.phases) for s in report.drawn if sum(s.phases.values()) > 0]
    if not rows:
        return None
    return Section(
        charts.phases(rows), report.drawn_note, _parts_table(rows, seconds_text, "Phases of a step")
    )


def _parts_table(rows: Sequence[Parts], form: Callable[[float | None], str], caption: str) -> TextTable:
    names = charts.part_names(rows)
    lines = [[row.label, *(form(parts.get(name)) for name in names)] for row, parts in rows]
    return TextTable(caption, ["configuration", *map(printable, names)], lines)


def _importance(report: Report) -> Section | None:
    if not report.importance:
        return None
    lines = [[printable(axis), f"{share:.1%}"] for axis, share in report.importance.items()]
    table = TextTable("Share of the objective's variation", ["axis", "share"], lines)
    return Section(charts.importance(report.importance), figures=table)


def hover_text(summary: ConfigSummary, objective: ObjectiveSpec) -> str:
    """Return a configuration as it is shown on hover: trial, axes, figures, verdict, what rules it out."""
    lines = [
        f"trial {printable(summary.trial_id)}",
        *label(summary).split(" "),
        f"{throughput_text(summary)}, {seconds_text(summary.number('mean_step_s'))} per step",
        f"device {bytes_text(summary.number('peak_device_bytes'))}, "
        f"host {bytes_text(summary.number('peak_host_bytes'))}",
        summary.verdict if summary.ok else outcome_text(summary),
        *(f"loss {sparkline(losses)}" for losses in [record.losses for record in summary.ok][-1:] if losses),
        *([printable(summary.diagnosis)] if summary.diagnosis else []),
        *(f"cannot be the best: {reason}" for reason in obstacles(summary, objective)),
    ]
    return "\n".join(lines)


def report_of(
    results: RunResults, comparison: Comparison | None = None, relative: Relative | None = None
) -> Report:
    """Return the report of results; a run directory's own objective ranks them, else tokens a second."""
    path = Path(results.source.path)
    file = path / "spec.yaml"
    objective = recorded_objective(file) if file.is_file() else SweepSpec().objective
    ordered = ranked(results.trials, objective)
    ranking = rank_run(path, ordered, objective)
    winner = next((summary for summary in ordered if summary.trial_id == ranking.recommended), None)
    return Report(
        results.source, ordered, objective, winner, comparison, importance_in(path), ranking, relative
    )


def importance_in(path: Path) -> dict[str, float]:
    """Return the share of each axis from a run's `search.json`; empty where no search was made."""
    file = path / "search.json"
    if not file.is_file():
        return {}
    try:
        shares = json.loads(file.read_text(encoding="utf-8"))["importance"]
        return {axis: float(share) for axis, share in shares.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"cannot read {file}: {error}; remove it to report without the search") from None
