"""From runs to a site: a page of each run that is new or changed, then what all runs together show."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from zbench import __version__
from zbench.analysis.compare import Comparison, compare_runs
from zbench.analysis.settings import Settings
from zbench.analysis.sources import load_results, source_of
from zbench.analysis.trials import RunResults
from zbench.children import die_with_parent
from zbench.errors import UsageError, ZbenchError
from zbench.record.store import ENVIRONMENT, SPEC, TRIALS
from zbench.report.html import page
from zbench.report.html.content import report_of
from zbench.report.site.pages import Overview
from zbench.report.site.store import KeptRun, Site

_MANY = 64
"""Runs from which on several processes make their pages."""

_DRAWN = 5
"""The newest runs, whose pages have pictures when they are made: to draw one takes a second or more."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A run whose page is made. base: the run that it is compared with."""

    path: Path
    base: Path | None
    is_drawn: bool

    def digest(self) -> str:
        """Return what changes with the files of both runs, and with zbench."""
        whole = hashlib.sha256(__version__.encode())
        for path in filter(None, (self.path, self.base)):
            for name in (TRIALS, ENVIRONMENT, SPEC):
                whole.update((path / name).read_bytes())
        return whole.hexdigest()

    def page(self) -> "tuple[str, KeptRun] | UsageError":
        """Return its page, and what the site keeps of it; why not, where the run cannot be read."""
        try:
            results = _results(self.path)
        except UsageError as error:
            return error
        report = report_of(results, _comparison(self.base, results))
        return page.render(report, home="../../index.html", drawn=self.is_drawn), KeptRun.of(results, report)


@lru_cache(2)
def _results(path: Path) -> RunResults:
    """Return the results of a run, read once: the next run's page compares with them."""
    return load_results(str(path), path.parent)


def _made(runs: Sequence[_Run]) -> "Iterator[tuple[str, KeptRun] | UsageError]":
    """Yield the page of each run, made by as many processes as there are processors where there are many."""
    if len(runs) < _MANY:
        yield from map(_Run.page, runs)
        return
    with ProcessPoolExecutor(initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        yield from pool.map(_Run.page, runs, chunksize=8)


def publish(
    site: Site, runs: Sequence[Path], tags: Mapping[str, str], commits: str, warn: Callable[[str], None]
) -> list[KeptRun]:
    """Bring a site up to date with these run directories, oldest first; return every run that it then has.

    Runs that the site has from earlier and that are not among these stay. tags: name -> `sweep/run id`.
    commits: the address of commits, before their hash; empty where they have none. A run that cannot be read
    is named by `warn` and left out.
    """
    _results.cache_clear()
    index = {run.name: run for run in site.kept()}
    newest: dict[tuple[str | None, ...], Path] = {}
    present: list[str] = []
    new: list[tuple[str, _Run]] = []
    for path in runs:
        if (path / TRIALS).stat().st_size == 0:
            continue
        try:
            source = source_of(path, path.name)
            name = f"{path.parent.name}/{path.name}"
        except UsageError as error:
            warn(f"left out: {error}")
            continue
        place = source.sweep, repr(sorted(source.facts.items()))
        base = newest.get((*place, source.branch)) or newest.get(place)
        newest[place] = newest[*place, source.branch] = path
        run = _Run(path, base, path in runs[-_DRAWN:] or name in tags.values())
        if name not in index or not site.is_current(f"runs/{name}.html", run.digest()):
            new.append((name, run))
        else:
            present.append(name)
    for (name, run), made in zip(new, _made([run for _, run in new]), strict=True):
        if isinstance(made, UsageError):
            warn(f"left out: {made}")
            continue
        text, index[name] = made
        site.write(f"runs/{name}.html", text, run.digest())
        present.append(name)
    for name in present:
        index[name] = replace(index[name], tags=tuple(tag for tag, named in tags.items() if named == name))
        site.keep(index[name])
    ordered = sorted(index.values(), key=lambda run: (run.id, run.name))
    if ordered:
        Overview(ordered, commits).publish(site)
    return ordered


def _comparison(path: Path | None, head: RunResults) -> Comparison | None:
    """Return the comparison with the run before, where both can be read and compared."""
    if path is None:
        return None
    try:
        base = _results(path)
        named = replace(base, source=replace(base.source, name=base.source.run_ids[0]))
        return compare_runs(named, head, Settings())
    except ZbenchError:
        return None
