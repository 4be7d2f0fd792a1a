"""From runs to a site: a page of each run that is new or changed, then what all runs together show."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zbench import __version__
from zbench.analysis.compare import Comparison, compare_runs
from zbench.analysis.settings import Settings
from zbench.analysis.sources import load_results
from zbench.analysis.trials import RunResults
from zbench.errors import UsageError, ZbenchError
from zbench.record.store import ENVIRONMENT, SPEC, TRIALS
from zbench.report.html import page
from zbench.report.html.content import report_of
from zbench.report.site.pages import Overview
from zbench.report.site.store import KeptRun, Site

_DRAWN = 5
"""The newest runs, whose pages have pictures when they are made: to draw one takes a second or more."""


def publish(
    site: Site, runs: Sequence[Path], tags: Mapping[str, str], commits: str, warn: Callable[[str], None]
) -> list[KeptRun]:
    """Bring a site up to date with these run directories, oldest first; return every run that it then has.

    Runs that the site has from earlier and that are not among these stay. tags: name -> `sweep/run id`.
    commits: the address of commits, before their hash; empty where they have none. A run that cannot be read
    is named by `warn` and left out.
    """
    kept = {run.name: run for run in site.kept()}
    newest: dict[tuple[str | None, ...], RunResults] = {}
    for path in runs:
        if (path / TRIALS).stat().st_size == 0:
            continue
        try:
            results = load_results(str(path), path.parent)
        except UsageError as error:
            warn(f"left out: {error}")
            continue
        source, name = results.source, f"{path.parent.name}/{path.name}"
        place = source.sweep, repr(sorted(source.facts.items()))
        base = newest.get((*place, source.branch)) or newest.get(place)
        newest[place] = newest[*place, source.branch] = results
        digest = _digest(path, *([Path(base.source.path)] if base else []))
        names = tuple(tag for tag, run in tags.items() if run == name)
        if name not in kept or not site.is_current(f"runs/{name}.html", digest):
            report = report_of(results, _comparison(base, results))
            text = page.render(report, home="../../index.html", drawn=path in runs[-_DRAWN:] or bool(names))
            site.write(f"runs/{name}.html", text, digest)
            kept[name] = KeptRun.of(results, report)
        kept[name] = replace(kept[name], tags=names)
        site.keep(kept[name])
    ordered = sorted(kept.values(), key=lambda run: (run.id, run.name))
    if ordered:
        Overview(ordered, commits).publish(site)
    return ordered


def _comparison(base: RunResults | None, head: RunResults) -> Comparison | None:
    """Return the comparison with the run before, where both can be compared."""
    if base is None:
        return None
    named = replace(base, source=replace(base.source, name=base.source.run_ids[0]))
    try:
        return compare_runs(named, head, Settings())
    except ZbenchError:
        return None


def _digest(*runs: Path) -> str:
    """Return what changes with the files of these runs, and with zbench."""
    whole = hashlib.sha256(__version__.encode())
    for path in runs:
        for name in (TRIALS, ENVIRONMENT, SPEC):
            whole.update((path / name).read_bytes())
    return whole.hexdigest()[:32]
