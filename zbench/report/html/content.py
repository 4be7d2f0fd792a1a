"""What a report shows, taken from its records: the pictures and the figures behind them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zbench.analysis.compare import Comparison
from zbench.analysis.ranking import Ranking, rank
from zbench.analysis.trials import RunResults, Source
from zbench.errors import UsageError
from zbench.record.summary import ConfigSummary, obstacles
from zbench.report.html import charts
from zbench.report.html.charts import ChartRow, Point, Stack
from zbench.report.html.drawing import Picture
from zbench.report.table import ranked
from zbench.report.text import (
    bytes_text,
    label,
    outcome_text,
    printable,
    rate_text,
    seconds_text,
    short_label,
)
from zbench.spec.load import recorded_objective
from zbench.spec.sweep import ObjectiveSpec, SweepSpec

MOST_ROWS = 40
"""Charts with a row per configuration draw this many; the table has all."""

MOST_POINTS = 200
HOST = "host_"
"""Prefix of the memory categories of offloaded host memory."""

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

    def limit(self, metric: str | None) -> float | None:
        """Return the largest value of a metric that the objective allows, None where it sets no limit."""
        bounds = [
            float(constraint.bound)
            for constraint in self.objective.constraints
            if constraint.metric == metric and constraint.operator in ("<=", "<")
        ]
        return min(bounds, default=None)


Breakdown = tuple[ConfigSummary, Mapping[str, float]]
"""A configuration and its parts by name: bytes by category, or seconds by phase."""


def points(report: Report) -> list[Point]:
    """Return the configurations of the scatter chart."""
    metric = report.memory_metric
    if metric is None:
        return []
    shown = []
    for summary in report.finished:
        peak, rate = summary.number(metric), summary.number("tokens_per_s")
        if peak is not None and rate is not None:
            why, hover = tuple(obstacles(summary, report.objective)), hover_text(summary, report.objective)
            shown.append(Point(label(summary), peak, rate, summary.verdict, why, hover))
    return shown


def pictures(report: Report) -> dict[str, Picture]:
    """Return every picture that the records have something for, by name, in the page's order."""
    drawn = report.finished[:MOST_ROWS]
    found: list[Picture] = []
    scattered = points(report)[:MOST_POINTS]
    if scattered:
        metric = report.memory_metric or "peak_device_bytes"
        name, limit = _MEMORY_NAMES[metric], report.limit(metric)
        found.append(charts.throughput_against_memory(scattered, name, limit))
    if report.comparison is not None and (compared := report.comparison.timed):
        found.append(charts.changes(report.comparison, compared[:MOST_ROWS]))
    if drawn:
        rows = [row_of(summary, report.objective) for summary in drawn]
        found.append(charts.step_times([(r, steps(s)) for r, s in zip(rows, drawn, strict=True)]))
    stacks = [
        Stack(row_of(summary, report.objective), device_parts(parts), host_parts(parts))
        for summary, parts in memory_rows(drawn)
    ]
    if stacks:
        parts = part_names([*(s.parts for s in stacks), *(s.second or {} for s in stacks)])
        found.append(charts.memory(stacks, parts, report.limit("peak_device_bytes")))
    phases = [Stack(row_of(summary, report.objective), parts) for summary, parts in phase_rows(drawn)]
    if phases:
        found.append(charts.phases(phases, part_names(s.parts for s in phases)))
    if report.importance:
        found.append(charts.importance(report.importance))
    return {picture.name: picture for picture in found}


def steps(summary: ConfigSummary) -> list[float]:
    """Return every timed step of every finished repeat, in seconds."""
    timings = [record.timing for record in summary.ok if record.timing is not None]
    return [seconds for timing in timings for seconds in timing.step_seconds or [timing.median_step_s]]


def memory_rows(summaries: Iterable[ConfigSummary]) -> list[Breakdown]:
    """Return bytes by category at the peak, the largest over repeats, of those that counted them."""
    rows: list[Breakdown] = []
    for summary in summaries:
        parts = [record.memory.by_category for record in summary.ok if record.memory is not None]
        merged = {name: max(part[name] for part in parts if name in part) for name in part_names(parts)}
        if sum(merged.values()) > 0:
            rows.append((summary, {name: float(size) for name, size in merged.items()}))
    return rows


def phase_rows(summaries: Iterable[ConfigSummary]) -> list[Breakdown]:
    """Return seconds by phase of a step, the median over repeats."""
    return [(summary, summary.phases) for summary in summaries if sum(summary.phases.values()) > 0]


def row_of(summary: ConfigSummary, objective: ObjectiveSpec) -> ChartRow:
    """Return the labels and the hover text of a configuration's row."""
    return ChartRow(label(summary), short_label(summary), hover_text(summary, objective))


def hover_text(summary: ConfigSummary, objective: ObjectiveSpec) -> str:
    """Return a configuration as it is shown on hover: trial, axes, figures, verdict, what rules it out."""
    lines = [
        f"trial {printable(summary.trial_id)}",
        *label(summary).split(" "),
        f"{rate_text(summary.number('tokens_per_s'))} tokens/s, "
        f"{seconds_text(summary.number('median_step_s'))} per step",
        f"device {bytes_text(summary.number('peak_device_bytes'))}, "
        f"host {bytes_text(summary.number('peak_host_bytes'))}",
        summary.verdict if summary.ok else outcome_text(summary),
        *(f"cannot be the best: {reason}" for reason in obstacles(summary, objective)),
    ]
    return "\n".join(lines)


def part_names(parts: Iterable[Mapping[str, float]]) -> list[str]:
    """Return all names of parts in order of first appearance."""
    return list(dict.fromkeys(name for part in parts for name in part))


def device_parts(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the categories of device memory."""
    return {name: size for name, size in parts.items() if not name.startswith(HOST)}


def host_parts(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the host's categories under the device's names, so that the same thing has the same colour."""
    return {name.removeprefix(HOST): size for name, size in parts.items() if name.startswith(HOST)}


def report_of(results: RunResults, comparison: Comparison | None = None) -> Report:
    """Return the report of results; a run directory's own objective ranks them, else tokens a second."""
    path = Path(results.source.path)
    objective = _objective(path)
    ordered = ranked(results.trials, objective)
    ranking = rank(ordered, objective)
    winner = next((summary for summary in ordered if summary.trial_id == ranking.recommended), None)
    return Report(results.source, ordered, objective, winner, comparison, importance_in(path), ranking)


def _objective(path: Path) -> ObjectiveSpec:
    file = path / "spec.yaml"
    return recorded_objective(file) if file.is_file() else SweepSpec().objective


def importance_in(path: Path) -> dict[str, float]:
    """Return the share of each axis from a run's `search.json`; empty where no search was made."""
    file = path / "search.json"
    if not file.is_file():
        return {}
    try:
        shares: Any = json.loads(file.read_text(encoding="utf-8")).get("importance")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"cannot read {file}: {error}; remove it to report without the search") from None
    if not isinstance(shares, Mapping):
        return {}
    return {str(axis): float(share) for axis, share in shares.items() if isinstance(share, int | float)}
