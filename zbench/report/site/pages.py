"""What all runs together show: the page of all, a page for each configuration, the feed, the badge."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from zbench import __version__
from zbench.analysis.history import KeptTrial, Series, Trial, history
from zbench.analysis.trials import Source
from zbench.record.summary import CORRECT
from zbench.report.exports.texts import percent
from zbench.report.html import page, timelines
from zbench.report.html.content import Section
from zbench.report.site.store import TRENDS, KeptRun, Site
from zbench.report.text import label, plural, xml_text
from zbench.spec.metrics import METRICS

_ALPHA = 0.001
"""Chance of a change where there is none: a site asks for every metric of every configuration."""

_MOST_CHANGES = 100
_SCRIPT = (Path(page.__file__).parent / "site.js").read_text(encoding="utf-8")
_LATE = 20
"""The newest runs, whose regressions the badge counts."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A configuration of one sweep, machine and branch: a series a metric, and every run that has it."""

    page: str
    series: dict[str, Series]
    results: list[tuple[KeptRun, KeptTrial]]

    @property
    def title(self) -> str:
        """Return the configuration's axes in words."""
        return label(self.results[-1][1])

    @property
    def varying(self) -> dict[str, Series]:
        """Return the series that have more than one value, which are worth a picture."""
        return {name: one for name, one in self.series.items() if len(set(one.values)) > 1}

    @property
    def titles(self) -> list[str]:
        """Return what tables call those."""
        return [METRICS[name].title for name in self.varying]

    def events(self) -> Iterator["Event"]:
        """Yield the changes of level of every metric, and each verdict that became another one."""
        runs = {run.id: run for run, _ in self.results}
        for metric, series in self.series.items():
            levels = [METRICS[metric].format(level) for _, _, level in series.levels()]
            for change, around in zip(series.changes, pairwise(levels), strict=True):
                subject, worse = f"{metric} {percent(change.change)}", series.is_worse(change, metric)
                run = runs[series.visits[change.index].run_id]
                yield Event(self, run, subject, " to ".join(around), change.after, worse)
        for (before, was), (run, now) in pairwise(self.results):
            if was.result != now.result:
                text, worse = f"{was.result} to {now.result}", now.result not in CORRECT
                yield Event(self, run, "verdict", text, before.source.commit, worse)


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a configuration, which begins with `run`; after: the last commit before it."""

    trend: Trend
    run: KeptRun
    subject: str
    text: str
    after: str | None
    is_worse: bool

    @property
    def key(self) -> str:
        """Return what names this event for good, where the runs stay the same."""
        return _digest(f"{self.trend.page} {self.subject} {self.run.name}")

    @property
    def title(self) -> str:
        """Return the configuration and what changed, as a feed may hold it."""
        return xml_text(f"{self.trend.title}: {self.subject}")


class Overview:
    """All runs of a site, oldest first, their trends, and what changed."""

    def __init__(self, runs: Sequence[KeptRun], commits: str) -> None:
        self._runs, self._commits = runs, commits
        self._trends = list(_trends(runs))
        events = [event for trend in self._trends for event in trend.events()]
        self._events = sorted(events, key=lambda event: event.run.id, reverse=True)

    def publish(self, site: Site) -> None:
        """Write the pages; the page of all runs comes last, when all that it leads to is there."""
        for trend in self._trends:
            results = [(run.source, trial) for run, trial in trend.results]  # without their other trials
            digest = _digest(repr((__version__, self._commits, trend.series, results)))
            if not site.is_current(trend.page, digest):
                site.write(trend.page, self._trend_page(trend), digest)
        worse, newest = [event for event in self._events if event.is_worse], self._runs[::-1]
        feed = {"events": worse[:_MOST_CHANGES], "updated": _timestamp(newest[0]), "timestamp": _timestamp}
        site.write("feed.xml", page.render_template("feed.xml.j2", **feed))
        site.write("badge.json", json.dumps(_badge(newest[:_LATE], worse)) + "\n")
        site.write(".nojekyll", "")
        site.write("index.html", self._index(newest))

    def _trend_page(self, trend: Trend) -> str:
        pages, most = {run.id: f"../{run.page}" for run, _ in trend.results}, timelines.MOST_VISITS
        sections = [
            Section(
                timelines.trend(series, name, pages),
                f" The newest {most} are drawn." if len(series.visits) > most else "",
            )
            for name, series in trend.varying.items()
        ]
        return page.render_template(
            "trend.html.j2",
            title=trend.title,
            home="../index.html",
            facts=trend.results[-1][0].facts.items(),
            sections=sections,
            trend=trend,
            events=[event for event in self._events if event.trend is trend],
            newest=trend.results[: -most - 1 : -1],
            metrics=METRICS,
            commits=self._commits,
        )

    def _index(self, newest: Sequence[KeptRun]) -> str:
        worse = sum(event.is_worse for event in self._events)
        facts = {"Newest run": newest[0].name, "Runs": len(newest),
                 "Configurations": len(self._trends), "Regressions": worse}  # fmt: skip
        return page.render_template(
            "index.html.j2",
            title="All runs",
            home="",
            facts=facts.items(),
            events=self._events[:_MOST_CHANGES],
            trends=self._trends,
            runs=newest,
            metrics=METRICS,
            commits=self._commits,
            script=_SCRIPT,
            script_digest=base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode(),
        )


def _trends(runs: Sequence[KeptRun]) -> Iterable[Trend]:
    results: dict[tuple[str, ...], list[tuple[KeptRun, KeptTrial]]] = {}
    for run in runs:
        for trial in run.trials:
            results.setdefault(_identity(run.source, trial), []).append((run, trial))
    trends: dict[str, Trend] = {}
    for metric in TRENDS:
        for series in history(runs, metric, alpha=_ALPHA):
            source = Source("", sweep=series.sweep, facts=series.facts, branch=series.branch)
            trend = Trend(f"trends/{_digest(series.key)}.html", {}, results[_identity(source, series.trial)])
            trends.setdefault(series.key, trend).series[metric] = series
    return trends.values()


def _identity(source: Source, trial: Trial) -> tuple[str, ...]:
    """Return what a configuration's results have in common: sweep, machine, branch and trial."""
    facts = repr(sorted(source.facts.items()))
    return str(source.sweep), facts, str(source.branch), trial.trial_id


def _badge(newest: Sequence[KeptRun], worse: Sequence[Event]) -> Mapping[str, Any]:
    """Return what shields.io shows: what is wrong with the newest run, and regressions of late."""
    late = {run.name for run in newest}
    counts = {"incorrect": newest[0].incorrect, "failed": newest[0].failed,
              "regressed": sum(event.run.name in late for event in worse)}  # fmt: skip
    bad = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    message = bad or f"{plural(len(newest[0].trials), 'configuration')}, none worse"
    colour = "red" if bad else "brightgreen"
    return {"schemaVersion": 1, "label": "zbench", "message": message, "color": colour}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _timestamp(run: KeptRun) -> str:
    """Return when a run started, as feeds write it; the beginning of time where that is not known."""
    try:
        return datetime.strptime(run.source.started or "", "%Y-%m-%dT%H:%M:%S%z").isoformat()
    except ValueError:
        return "1970-01-01T00:00:00+00:00"
