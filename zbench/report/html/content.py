"""What a report shows, taken from its records: the pictures and the figures behind them. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zbench.analysis.compare import Comparison
from zbench.analysis.ranking import Ranking
from zbench.analysis.trials import Source
from zbench.record.summary import ConfigSummary
from zbench.report.html import intervals, rows, scatter
from zbench.report.html.chart import Picture
from zbench.report.html.rows import Name
from zbench.report.html.scatter import Point
from zbench.report.labels import label, short_label
from zbench.spec.sweep import ObjectiveSpec

MOST_ROWS = 40
"""Charts draw this many configurations; the table has all."""

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

    @property
    def finished(self) -> list[ConfigSummary]:
        """Return the configurations with a measured step time."""
        return [summary for summary in self.summaries if summary.values("median_step_s")]

    @property
    def memory_metric(self) -> str | None:
        """Return the peak by which configurations compare: of the device, else of the host or process."""
        return next((name for name in _MEMORY_NAMES if any(s.values(name) for s in self.finished)), None)


def points(report: Report) -> list[Point]:
    """Return the configurations of the scatter chart."""
    metric = report.memory_metric
    if metric is None:
        return []
    found = []
    for summary in report.finished:
        peak, rate = summary.number(metric), summary.number("tokens_per_s")
        if peak is not None and rate is not None:
            found.append(Point(label(summary), peak, rate, summary.verdict))
    return found


def pictures(report: Report) -> dict[str, Picture]:
    """Return every picture that the records have something for, by name, in the page's order."""
    drawn = report.finished[:MOST_ROWS]
    found: list[Picture] = []
    scattered = points(report)
    if scattered:
        name = _MEMORY_NAMES[report.memory_metric or "peak_device_bytes"]
        found.append(scatter.throughput_against_memory(scattered, name))
    compared = report.comparison.timed if report.comparison else []
    if report.comparison is not None and compared:
        found.append(intervals.changes(report.comparison, compared[:MOST_ROWS]))
    if drawn:
        found.append(rows.step_times([(name_of(summary), steps(summary)) for summary in drawn]))
    categories = memory_rows(drawn)
    if categories:
        found.append(rows.memory(categories, part_names(parts for _, parts in categories)))
    phases = phase_rows(drawn)
    if phases:
        found.append(rows.phases(phases, part_names(parts for _, parts in phases)))
    if report.importance:
        found.append(rows.importance(report.importance))
    return {picture.name: picture for picture in found}


def steps(summary: ConfigSummary) -> list[float]:
    """Return every timed step of every finished repeat, in seconds."""
    timings = [record.timing for record in summary.ok if record.timing is not None]
    return [seconds for timing in timings for seconds in timing.step_seconds or [timing.median_step_s]]


def memory_rows(summaries: Iterable[ConfigSummary]) -> list[tuple[Name, dict[str, float]]]:
    """Return bytes by category at the peak, the largest over repeats, of those that counted them."""
    found = []
    for summary in summaries:
        parts = [record.memory.by_category for record in summary.ok if record.memory is not None]
        merged = {name: max(part.get(name, 0) for part in parts) for name in part_names(parts)}
        if sum(merged.values()) > 0:
            found.append((name_of(summary), {name: float(size) for name, size in merged.items()}))
    return found


def phase_rows(summaries: Iterable[ConfigSummary]) -> list[tuple[Name, dict[str, float]]]:
    """Return seconds by phase of a step, the median over repeats."""
    found = []
    for summary in summaries:
        parts = [record.timing.phases for record in summary.ok if record.timing is not None]
        merged = {
            name: statistics.median(part.get(name, 0.0) for part in parts) for name in part_names(parts)
        }
        if sum(merged.values()) > 0:
            found.append((name_of(summary), merged))
    return found


def name_of(summary: ConfigSummary) -> Name:
    """Return what a configuration's row is called."""
    return Name(label(summary), short_label(summary))


def part_names(parts: Iterable[Mapping[str, float]]) -> list[str]:
    """Return all names of parts in order of first appearance."""
    return list(dict.fromkeys(name for part in parts for name in part))
