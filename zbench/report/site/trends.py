"""What the runs of a site have in common: the series of each configuration, and where its level changed."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbench.analysis.history import KeptTrial, Series, Trial, history
from zbench.analysis.trials import Source
from zbench.record.summary import CORRECT
from zbench.report.exports.texts import percent
from zbench.report.site.store import TRENDS, KeptRun
from zbench.report.text import label, xml_text
from zbench.spec.metrics import METRICS

_ALPHA = 0.001
"""Chance of a change where there is none: a site asks for every metric of every configuration."""


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
    def first(self) -> Series:
        """Return the series of its first metric."""
        return next(iter(self.series.values()))

    @property
    def varying(self) -> dict[str, Series]:
        """Return the series that have more than one value, which are worth a picture."""
        return {name: one for name, one in self.series.items() if len(set(one.values)) > 1}

    def events(self) -> Iterator["Event"]:
        """Yield the changes of level of every metric, and each verdict that became another one."""
        runs = {run.id: run for run, _ in self.results}
        for metric, series in self.series.items():
            levels = [METRICS[metric].format(level) for _, _, level in series.levels()]
            for change, around in zip(series.changes, pairwise(levels), strict=True):
                subject = f"{metric} {percent(change.change)}"
                worse = series.is_worse(change, metric)
                run = runs[series.visits[change.index].run_id]
                yield Event(self, run, subject, " to ".join(around), change.after, worse)
        for (before, was), (run, now) in pairwise(self.results):
            if was.result != now.result:
                text = f"{was.result} to {now.result}"
                worse = now.result not in CORRECT
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
        return digest_of(f"{self.trend.page} {self.subject} {self.run.name}")

    @property
    def title(self) -> str:
        """Return the configuration and what changed, as a feed may hold it."""
        return xml_text(f"{self.trend.title}: {self.subject}")


def trends_of(runs: Sequence[KeptRun]) -> Iterable[Trend]:
    """Return the trend of each configuration of these runs, which are the oldest first."""
    results: dict[tuple[str, ...], list[tuple[KeptRun, KeptTrial]]] = {}
    for run in runs:
        for trial in run.trials:
            results.setdefault(_identity(run.source, trial), []).append((run, trial))
    trends: dict[str, Trend] = {}
    for metric in TRENDS:
        for series in history(runs, metric, alpha=_ALPHA):
            source = Source("", sweep=series.sweep, facts=series.facts, branch=series.branch)
            trend = Trend(
                f"trends/{digest_of(series.key)}.html", {}, results[_identity(source, series.trial)]
            )
            trends.setdefault(series.key, trend).series[metric] = series
    return trends.values()


def _identity(source: Source, trial: Trial) -> tuple[str, ...]:
    """Return what a configuration's results have in common: sweep, machine, branch and trial."""
    facts = repr(sorted(source.facts.items()))
    return str(source.sweep), facts, str(source.branch), trial.trial_id


def digest_of(text: str) -> str:
    """Return a name for a text: the same text has the same one."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
