"""The contents of a report, taken from its records; `charts` makes its sections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from zbench.analysis.compare import Comparison
from zbench.analysis.ranking import Ranking, rank_run
from zbench.analysis.relative import Relative
from zbench.analysis.trials import RunResults, Source
from zbench.record.documents import read_json
from zbench.record.store import SEARCH
from zbench.record.summary import ConfigSummary, obstacles
from zbench.report.columns import DataTable
from zbench.report.html.drawing import Picture
from zbench.report.table import in_order
from zbench.report.text import figure_text, label, printable, result_text, sparkline, throughput_text
from zbench.spec.load import recorded_objective
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import ObjectiveSpec, SweepSpec

MOST_ROWS = 40
"""Most rows of a chart with a row per configuration; the table has all."""


@dataclass(frozen=True, slots=True)
class _Findings:
    importance: dict[str, float]


_FINDINGS = TypeAdapter(_Findings)

PEAKS = [name for name, metric in METRICS.items() if metric.unit == "bytes"]
"""The metrics that configurations are compared by, the first that is known: of device, host or process."""


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of a report; `summaries` are in the order of the table, the best first.

    winner: the best configuration or, if several are tied, the recommended one of them.
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
        """Return a sentence if some configurations are not drawn, else an empty text."""
        drawn, total = len(self.drawn), len(self.finished)
        return "" if drawn == total else f" The first {drawn} of {total} configurations are drawn."

    @property
    def memory_metric(self) -> str | None:
        """Return the peak that configurations are compared by: of the device, else of the host or process."""
        return next((name for name in PEAKS if any(s.values(name) for s in self.finished)), None)

    def limit(self, metric: str | None) -> float | None:
        """Return the largest value of a metric that the objective allows, None where it sets no limit."""
        bounds = [
            float(constraint.bound)
            for constraint in self.objective.constraints
            if constraint.metric == metric and constraint.operator in ("<=", "<")
        ]
        return min(bounds, default=None)


@dataclass(frozen=True, slots=True)
class Section:
    """A chart with a note on what it leaves out, a table of its figures, and lines of text below.

    listed: the heading of the lines, if they have one.
    """

    picture: Picture
    note: str = ""
    figures: DataTable[Any] | None = None
    table: DataTable[Any] | None = None
    listed: str = ""
    lines: Sequence[str] = ()


def categories(summary: ConfigSummary) -> dict[str, float]:
    """Return bytes by category at the peak, the largest over the repeats that counted them."""
    largest: dict[str, float] = {}
    for record in summary.ok:
        for name, size in (record.memory.by_category if record.memory is not None else {}).items():
            largest[name] = max(float(size), largest.get(name, 0.0))
    return largest


def hover_text(summary: ConfigSummary, objective: ObjectiveSpec) -> str:
    """Return a configuration's hover text: trial, axes, figures, verdict, and why it cannot be the best."""
    lines = [
        f"trial {printable(summary.trial_id)}",
        *label(summary).split(" "),
        f"{throughput_text(summary)}, {figure_text(summary, 'mean_step_s')} per step",
        f"device {figure_text(summary, 'peak_device_bytes')}, host {figure_text(summary, 'peak_host_bytes')}",
        f"{result_text(summary)}{summary.uncovered}",
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
    ordered = in_order(results.trials, objective)
    ranking = rank_run(path, ordered, objective)
    winner = next((summary for summary in ordered if summary.trial_id == ranking.recommended), None)
    return Report(
        results.source, ordered, objective, winner, comparison, importance_in(path), ranking, relative
    )


def importance_in(path: Path) -> dict[str, float]:
    """Return the importance of each axis from a run's `search.json`; empty if there was no search."""
    if not (path / SEARCH).is_file():
        return {}
    return read_json(path / SEARCH, _FINDINGS, "remove it to report without the search").importance
