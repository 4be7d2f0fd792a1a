"""`zbench report`: a run as one self-contained page, as pictures, or as Markdown on stdout."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.app.report import composed, write
from zbench.cli import console, options
from zbench.report.exports.markdown import render_run as as_markdown
from zbench.report.relative import relative_documents


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
    report = composed(run, output_dir, baseline=baseline, across=across, relative_to=relative_to, by=by)
    written = write(report, html, plots)
    if console.state.json:
        relative = report.relative
        more = {} if relative is None else {"relative": relative_documents(relative)}
        console.document({"written": [str(path) for path in written], **more})
    elif written:
        for path in written:
            console.result(str(path))
    else:
        console.result(as_markdown(report))
