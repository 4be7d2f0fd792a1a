"""Composes the report of a run, and writes it as a page and as pictures."""

from collections.abc import Sequence
from pathlib import Path

from zbench.analysis.compare import compare_runs
from zbench.analysis.relative import compared
from zbench.analysis.settings import Settings
from zbench.analysis.sources import load_results
from zbench.errors import UsageError
from zbench.report import exports
from zbench.report.html import charts, content, page


def composed(
    run: str,
    output_dir: Path,
    *,
    baseline: str | None = None,
    across: bool = False,
    relative_to: Sequence[str] = (),
    by: Sequence[str] = (),
) -> content.Report:
    """Return what a run's report says; `run` and `baseline` are named as for `compare_stored`.

    baseline: the run to compare it with, also on another machine where `across`. relative_to, by: compare
    its configurations with one another, as `zbench show --relative-to` does.
    """
    results = load_results(run, output_dir)
    comparison = None
    if baseline is not None:
        comparison = compare_runs(load_results(baseline, output_dir), results, Settings(across=across))
    return content.report_of(results, comparison, compared(results.trials, relative_to, by))


def write(report: content.Report, html: Path | None, plots: Path | None) -> list[Path]:
    """Write a report as a page, and its charts as SVG into a directory; return the files.

    UsageError if there is nothing to draw.
    """
    written: list[Path] = []
    if html is not None:
        written += exports.write({html.name: page.render(report)}, html.parent)
    if plots is not None:
        pictures = [section.picture for section in charts.sections(report)]
        if not pictures:
            raise UsageError(
                f"{report.source.name} has nothing to draw: no configuration was measured; name another run"
            )
        written += exports.write({f"{picture.name}.svg": picture.file() for picture in pictures}, plots)
    return written
