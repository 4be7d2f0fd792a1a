"""The tables of a site: all runs, their configurations, what changed, and the runs of one configuration."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from zbench.analysis.history import KeptTrial
from zbench.report.columns import Column, DataTable, metric_column
from zbench.report.html.page import machine_text
from zbench.report.roles import ANSWERS, RESULTS
from zbench.report.site.store import KeptRun
from zbench.report.site.trends import Event, Trend
from zbench.report.text import commit_text, plural, sparkline, started_text

Row = TypeVar("Row")
Visit = tuple[KeptRun, KeptTrial]
"""A run of one configuration, and what it gave."""

_BARS = 20  # of a history
_HASH = re.compile("[0-9a-f]{7,64}")
_CHANGES = ANSWERS | {"change": "fine"}


def runs_table(runs: Sequence[KeptRun], commits: str) -> DataTable[KeptRun]:
    """Return all runs, the newest first. commits: the address of commits, before their hash."""
    columns = [
        _run(""),
        _text("sweep", lambda run: run.source.sweep),
        _started(),
        _commit("commit", lambda run: run.source.commit, commits),
        _text("branch", lambda run: run.source.branch),
        _text("machine", lambda run: machine_text(run.source.facts)),
        Column("configurations", lambda run: len(run.trials)),
        Column("failed", lambda run: run.failed),
        Column("incorrect", lambda run: run.incorrect),
        _text("best", lambda run: run.best),
        Column("throughput", lambda run: run.throughput),
    ]
    return DataTable(columns, runs, f"{plural(len(runs), 'run')}, the newest first")


def trends_table(trends: Sequence[Trend]) -> DataTable[Trend]:
    """Return all configurations, with the history of each one's first metric, and its newest result."""
    columns = [
        _configuration(),
        _text("sweep", lambda trend: trend.first.sweep),
        _text("branch", lambda trend: trend.first.branch),
        _text("machine", lambda trend: machine_text(trend.first.facts)),
        Column("runs", lambda trend: len(trend.first.visits)),
        _text("history", lambda trend: sparkline(trend.first.values, _BARS)),
        *(_newest(name) for name in _FOLLOWED if any(name in trend.series for trend in trends)),
        Column("verdict", lambda trend: trend.results[-1][1].result, roles=RESULTS),
    ]
    return DataTable(columns, trends, f"{plural(len(trends), 'configuration')}; the name leads to its trends")


_FOLLOWED = ("mean_step_s", "peak_device_bytes")


def _newest(name: str) -> Column[Trend]:
    """Return the column of the newest value of a metric."""

    def value(trend: Trend) -> float | None:
        return trend.series[name].values[-1] if name in trend.series else None

    return metric_column(name, value)


def changes_table(events: Sequence[Event], commits: str, *, up: str = "") -> DataTable[Event]:
    """Return what has changed, the newest first. up: the way to the site's directory, from the page of one
    configuration, which needs no name there.
    """
    columns = [
        replace(_run(up), name="since run", title="since run").of(lambda event: event.run),
        *([] if up else [_configuration().of(_trend_of)]),
        _text("what", lambda event: event.subject),
        _text("from, to", lambda event: event.text),
        _commit("after commit", lambda event: event.after, commits),
        _commit("up to commit", lambda event: event.run.source.commit, commits),
        Column("answer", lambda event: "regression" if event.is_worse else "change", roles=_CHANGES),
    ]
    return DataTable(columns, events, "The newest first")


def _trend_of(event: Event) -> Trend:
    return event.trend


def visits_table(trend: Trend, most: int, commits: str) -> DataTable[Visit]:
    """Return the newest runs of one configuration, with the metrics that change."""
    visits = trend.results[: -most - 1 : -1]
    columns = [
        _run("../").of(_run_of),
        _started().of(_run_of),
        _commit("commit", lambda visit: visit[0].source.commit, commits),
        *map(_figure, trend.varying),
        Column("verdict", lambda visit: visit[1].result, roles=RESULTS),
    ]
    return DataTable(columns, visits, f"{plural(len(visits), 'run')}, the newest first")


def _run_of(visit: Visit) -> KeptRun:
    return visit[0]


def _figure(name: str) -> Column[Visit]:
    return metric_column(name, lambda visit: visit[1].number(name))


def _text(
    name: str, value: Callable[[Row], Any], link: Callable[[Row], str | None] | None = None
) -> Column[Row]:
    """Return a column of words; nothing where a row has none."""
    return Column(name, lambda row: value(row) or "", left=True, link=link)


def _configuration() -> Column[Trend]:
    return _text("configuration", lambda trend: trend.title, link=lambda trend: trend.page)


def _run(up: str) -> Column[KeptRun]:
    return _text(
        "run",
        lambda run: " ".join((run.id, *(f"({tag})" for tag in run.tags))),
        link=lambda run: f"{up}{run.page}",
    )


def _started() -> Column[KeptRun]:
    return _text("started", lambda run: started_text(run.source.started))


def _commit(name: str, commit: Callable[[Row], str | None], commits: str) -> Column[Row]:
    """Return the column of a commit, with a link where commits have an address."""

    def link(row: Row) -> str | None:
        plain = (commit(row) or "").removesuffix("+changes")
        return f"{commits}{plain}" if commits and _HASH.fullmatch(plain) else None

    return _text(name, lambda row: commit_text(commit(row)), link)
