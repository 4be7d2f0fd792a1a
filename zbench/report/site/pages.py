"""The pages that all runs share: the page of all, a page for each configuration, the feed, the badge."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from zbench import __version__
from zbench.report.html import page, timelines
from zbench.report.html.content import Section
from zbench.report.site.store import KeptRun, Site
from zbench.report.site.tables import changes_table, runs_table, trends_table, visits_table
from zbench.report.site.trends import Event, Trend, digest_of, trends_of
from zbench.report.text import plural
from zbench.spec.metrics import METRICS

_MOST_CHANGES = 100
_SCRIPT = (Path(page.__file__).parent / "site.js").read_text(encoding="utf-8")
_LATE = 20
"""The newest runs, whose regressions the badge counts."""


class Overview:
    """All runs of a site, oldest first, their trends, and what changed."""

    def __init__(self, runs: Sequence[KeptRun], commits: str) -> None:
        self._runs, self._commits = runs, commits
        self._trends = list(trends_of(runs))
        events = [event for trend in self._trends for event in trend.events()]
        self._events = sorted(events, key=lambda event: event.run.id, reverse=True)

    def publish(self, site: Site) -> None:
        """Write the pages; the page of all runs comes last, when all that it leads to is there."""
        for trend in self._trends:
            results = [(run.source, trial) for run, trial in trend.results]  # without their other trials
            digest = digest_of(repr((__version__, self._commits, trend.series, results)))
            if not site.is_current(trend.page, digest):
                site.write(trend.page, self._trend_page(trend), digest)
        worse = [event for event in self._events if event.is_worse]
        newest = self._runs[::-1]
        feed = {"events": worse[:_MOST_CHANGES], "updated": _timestamp(newest[0]), "timestamp": _timestamp}
        site.write("feed.xml", page.render_template("feed.xml.j2", **feed))
        site.write("badge.json", json.dumps(_badge(newest[:_LATE], worse)) + "\n")
        site.write(".nojekyll", "")
        site.write("index.html", self._index(newest))

    def _trend_page(self, trend: Trend) -> str:
        pages = {run.id: f"../{run.page}" for run, _ in trend.results}
        most = timelines.MOST_VISITS
        events = [event for event in self._events if event.trend is trend]
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
            constant=[
                f"{METRICS[name].description} {METRICS[name].format(series.values[-1])}"
                for name, series in trend.series.items()
                if name not in trend.varying
            ],
            changes=changes_table(events, self._commits, up="../"),
            visits=visits_table(trend, most, self._commits),
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
            changes=changes_table(self._events[:_MOST_CHANGES], self._commits),
            trends=trends_table(self._trends),
            runs=runs_table(newest, self._commits),
            script=_SCRIPT,
            script_digest=base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode(),
        )


def _badge(newest: Sequence[KeptRun], worse: Sequence[Event]) -> Mapping[str, Any]:
    """Return what shields.io shows: what is wrong with the newest run, and regressions of late."""
    late = {run.name for run in newest}
    counts = {"incorrect": newest[0].incorrect, "failed": newest[0].failed,
              "regressed": sum(event.run.name in late for event in worse)}  # fmt: skip
    bad = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    message = bad or f"{plural(len(newest[0].trials), 'configuration')}, none worse"
    colour = "red" if bad else "brightgreen"
    return {"schemaVersion": 1, "label": "zbench", "message": message, "color": colour}


def _timestamp(run: KeptRun) -> str:
    """Return when a run started, as feeds write it; the beginning of time where that is not known."""
    try:
        return datetime.strptime(run.source.started or "", "%Y-%m-%dT%H:%M:%S%z").isoformat()
    except ValueError:
        return "1970-01-01T00:00:00+00:00"
