"""`zbench report`: a run as one self-contained page, as pictures, or as Markdown on stdout."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.analysis.compare import compare_runs
from zbench.analysis.relative import compared
from zbench.analysis.settings import Settings
from zbench.analysis.sources import load_results
from zbench.cli import console, options
from zbench.errors import UsageError
from zbench.report import exports
from zbench.report.exports.markdown import render_run as as_markdown
from zbench.report.html import charts, content, page
from zbench.report.relative import relative_document


def command(
    run: Annotated[
        str, options.run_argument("RUN", "A run, results file, directory, baseline, or `last`.")
    ] = "last",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page to this file.")] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every chart into this directory, as SVG.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="BASE", help="Add a comparison with this run or baseline.")
    ] = None,
    across: Annotated[bool, typer.Option("--across", help="Compare even if the machines differ.")] = False,
    relative_to: options.RelativeTo = [],  # noqa: B006 - Typer reads the default, nobody changes it
    by: options.By = [],  # noqa: B006
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Write a report of a run: a page with --html, charts with --plots, otherwise Markdown on stdout."""
    results = load_results(run, output_dir)
    comparison = None
    if baseline is not None:
        base = load_results(baseline, output_dir)
        comparison = compare_runs(base, results, Settings(across=across))
    relative = compared(results.trials, relative_to, by)
    report = content.report_of(results, comparison, relative)
    written: list[Path] = []
    if html is not None:
        written += exports.write({html.name: page.render(report)}, html.parent)
    if plots is not None:
        pictures = [section.picture for section in charts.sections(report)]
        if not pictures:
            raise UsageError(f"{run} has nothing to draw: no configuration was measured; name another run")
        written += exports.write({f"{picture.name}.svg": picture.file() for picture in pictures}, plots)
    if console.state.json:
        more = {} if relative is None else {"relative": list(map(relative_document, relative.rows))}
        console.document({"written": [str(path) for path in written], **more})
    elif written:
        for path in written:
            console.result(str(path))
    else:
        console.result(as_markdown(report))
