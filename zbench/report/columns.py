"""Columns: what a figure is called, how it is read from a row, and how people read it, once.

A table is a list of columns over rows of one kind: configurations, rows of a comparison, pairs of
counterparts, runs. Screen, Markdown and HTML write its texts; CSV, JSON and Parquet its documents. The title
and the format of a metric are those of `zbench.spec.metrics`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

from zbench.analysis.ranking import Ranking
from zbench.record.summary import ConfigSummary, known_rate, point, unmet_constraints, varied_keys
from zbench.report.answer import bound_text, worse
from zbench.report.roles import OUTCOMES, RESULTS
from zbench.report.text import label, outcome_text, printable, result_text, short_ids, value_text
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import ObjectiveSpec

Row = TypeVar("Row")
Other = TypeVar("Other")


def _plain(value: object) -> str:
    return printable(str(value))


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A figure of each row.

    name: in documents. value: the figure as a plain value, times in seconds and sizes in bytes; None where a
    row has none. form: what people read of it. title: of tables for people, the name where none is given.
    left: cells are aligned to the left. folds: a long cell may be folded before a part such as `-> 2.1 s`,
    `[-1 %, +2 %]` or the next key. roles: of cells that are words such as a verdict. quiet: dim. note: what
    the title means, for who reads it for the first time. link: where a page leads to from a row's cell, if
    anywhere. detail: what people read behind the value.
    """

    name: str
    value: Callable[[Row], Any]
    form: Callable[[Any], str] = _plain
    title: str = ""
    left: bool = False
    folds: bool = False
    roles: Mapping[str, str] | None = None
    quiet: bool = False
    note: str = ""
    link: Callable[[Row], str | None] | None = None
    detail: Callable[[Row], str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)

    def text(self, row: Row) -> str:
        """Return what people read of a row; `-` where it has no value."""
        value = self.value(row)
        detail = "" if self.detail is None else self.detail(row)
        return "-" if value is None else f"{self.form(value)}{detail}"

    def of(self, side: Callable[[Other], Row], prefix: str = "") -> "Column[Other]":
        """Return this column of rows that have a row of this kind as a side."""
        column: Column[Any] = self
        name = f"{prefix}{self.name}"
        link, detail = self.link, self.detail
        beyond = None if link is None else lambda other: link(side(other))
        behind = None if detail is None else lambda other: detail(side(other))
        value: Callable[[Other], Any] = lambda other: self.value(side(other))  # noqa: E731
        return replace(column, name=name, value=value, link=beyond, detail=behind)

    def of_both(
        self, sides: Callable[[Other], tuple[Row, Row]], join: Callable[[str, str], str]
    ) -> "Column[Other]":
        """Return a column of the texts of both sides of a row, joined."""

        def value(other: Other) -> str:
            return join(*map(self.text, sides(other)))

        return Column(self.name, value, title=self.title, left=True, folds=True)


@dataclass(frozen=True)
class DataTable(Generic[Row]):
    """Columns over rows.

    caption: what the rows are. marks: of each row, as `Ranking.mark` has them; a marked row stands out.
    below: a line that sums the rows up.
    """

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    caption: str = ""
    marks: Sequence[str] = ()
    below: str = ""

    @property
    def titles(self) -> list[str]:
        """Return the headings for people."""
        return [column.title for column in self.columns]

    def texts(self) -> list[list[str]]:
        """Return what people read in each row."""
        return [[column.text(row) for column in self.columns] for row in self.rows]

    def documents(self) -> list[dict[str, Any]]:
        """Return name -> plain value for each row."""
        return [{column.name: column.value(row) for column in self.columns} for row in self.rows]


_BOUND = "than the best row, with 95 % confidence"
_NOTES = {
    "of_compute": "a row's speed over its speed without communication and optimizer",
    "error_ratio": "the distance of a row's weights from exact ones over that of plain PyTorch's",
}


def metric_column(name: str, value: Callable[[Row], Any]) -> Column[Row]:
    """Return the column of a metric of `zbench.spec.metrics`; value: reads it from a row."""
    measure = METRICS[name]
    return Column(name, value, measure.format, measure.title, note=_NOTES.get(name, ""))


def metric(name: str) -> Column[ConfigSummary]:
    """Return the column of a metric of configurations."""
    return metric_column(name, lambda summary: summary.metric(name))


def spread(rate: str) -> Column[ConfigSummary]:
    """Return the column of how far a metric's repeats are apart, as `ConfigSummary.spread` has it."""
    note = "half the range of a row's repeats over their median"
    return Column("spread", lambda summary: summary.spread(rate), lambda share: f"±{share:.1%}", note=note)


CONFIGURATION = Column[ConfigSummary]("configuration", label, left=True, folds=True)
TRIAL = Column[ConfigSummary]("trial_id", attrgetter("trial_id"), title="trial", left=True, quiet=True)
AXES = Column[ConfigSummary]("axes", attrgetter("axes"))
OUTCOME = Column[ConfigSummary]("outcome", outcome_text, left=True, roles=OUTCOMES)
RESULT = Column[ConfigSummary](
    "verdict",
    result_text,
    left=True,
    roles=RESULTS,
    note="identical means plain PyTorch's bits",
    detail=lambda summary: summary.uncovered,
)
_OF_SCRIPTS = {
    "verdict": "identical means the bits of the script's base",
    "error_ratio": "the distance of a row's weights from the base's over that of a run with rounding errors",
}
DIAGNOSIS = Column[ConfigSummary]("diagnosis", lambda summary: summary.diagnosis or "", left=True)
"""Of a configuration; RESULT is its verdict, or its outcome where that is worse."""


def short_trial(summaries: Sequence[ConfigSummary]) -> Column[ConfigSummary]:
    """Return the column of the starts of ids that tell these configurations apart."""
    ids = {summary.trial_id: name for summary, name in zip(summaries, short_ids(summaries), strict=True)}
    return replace(TRIAL, form=ids.__getitem__)


def axis(key: str) -> Column[ConfigSummary]:
    """Return the column of an axis, from a point's axes or else from its configuration."""
    return Column(key, lambda summary: value_text(point(summary, [key])[key]), title=printable(key))


def of_scripts(
    columns: Sequence[Column[ConfigSummary]], summaries: Sequence[ConfigSummary]
) -> list[Column[ConfigSummary]]:
    """Return columns with the notes of rows that ran scripts, if all of them did."""
    commands = [(summary.config.get("workload") or {}).get("command") for summary in summaries]
    notes = _OF_SCRIPTS if commands and all(commands) else {}
    return [replace(column, note=notes.get(column.name, column.note)) for column in columns]


def page_table(summaries: Sequence[ConfigSummary], ranking: Ranking) -> DataTable[ConfigSummary]:
    """Return the configurations as Markdown, HTML pages and notebooks show them."""
    rate = known_rate(summaries)
    times = ("error_ratio", "p95_step_s", "worst_step_s", "of_compute")
    columns = [
        CONFIGURATION,
        short_trial(summaries),
        metric(rate),
        spread(rate),
        *map(metric, ("median_step_s", "peak_device_bytes", "peak_host_bytes")),
        RESULT,
        *map(metric, times),
        DIAGNOSIS,
    ]
    marks = [ranking.mark(summary.trial_id) for summary in summaries]
    return DataTable(of_scripts(columns, summaries), summaries, marks=marks)


def screen_table(
    summaries: Sequence[ConfigSummary], ranking: Ranking, objective: ObjectiveSpec
) -> DataTable[ConfigSummary]:
    """Return the configurations as `zbench show` prints them: axes, figures, distance from the best."""
    rate = known_rate(summaries)
    columns = [
        short_trial(summaries),
        *map(axis, varied_keys(summaries)),
        OUTCOME,
        metric(rate),
        spread(rate),
        metric("median_step_s"),
        of_compute(ranking),
        *map(metric, ("peak_device_bytes", "peak_host_bytes")),
        RESULT,
        metric("error_ratio"),
        Column("bound", lambda summary: bound_text(summary, ranking), title=worse(objective), note=_BOUND),
        Column("outside", lambda summary: _outside(summary, objective), left=True),
    ]
    marks = [ranking.mark(summary.trial_id) for summary in summaries]
    return DataTable(of_scripts(columns, summaries), summaries, marks=marks)


def of_compute(ranking: Ranking) -> Column[ConfigSummary]:
    """Return the column of the share of compute alone, with half of its interval: `0.89 ±0.02`. Under load it
    is empty: other processes slow the two differently.
    """
    share = metric("of_compute")

    def value(summary: ConfigSummary) -> str | None:
        interval = ranking.of_compute.get(summary.trial_id)
        half = f" ±{(interval[1] - interval[0]) / 2:.2f}" if interval is not None else ""
        is_known = share.value(summary) is not None and not ranking.load
        return f"{share.text(summary)}{half}" if is_known else None

    return Column(share.name, value, title=share.title, note=share.note)


def _outside(summary: ConfigSummary, objective: ObjectiveSpec) -> str:
    return ", ".join(map(str, unmet_constraints(summary, objective)))
