"""`zbench report`: a run as one self-contained page, as pictures, or as Markdown on stdout."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zbench.cli import completion, console
from zbench.cli.options import DEFAULT_OUTPUT_DIR, OutputDir, common_flags
from zbench.errors import UsageError

if TYPE_CHECKING:
    from zbench.analysis.compare import Comparison
    from zbench.analysis.trials import RunResults


@common_flags()
def command(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run, results file, directory or baseline, or `last`.",
            autocompletion=completion.runs,
        ),
    ] = "last",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page here.")] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every picture here, as SVG.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="BASE", help="Compare with this run or baseline in the report.")
    ] = None,
    across: Annotated[bool, typer.Option("--across", help="Compare unlike machines all the same.")] = False,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Write a report of a run: --html for a page, --plots for pictures, else Markdown on stdout."""
    from zbench.analysis.sources import load_results
    from zbench.report import exports
    from zbench.report.exports.markdown import render_run as as_markdown
    from zbench.report.html import content, page

    results = load_results(run, output_dir)
    comparison = None if baseline is None else _compared(baseline, results, output_dir, across)
    report = content.report_of(results, comparison)
    written: list[Path] = []
    if html is not None:
        written += exports.write({html.name: page.render(report)}, html.parent)
    if plots is not None:
        pictures = content.pictures(report)
        if not pictures:
            raise UsageError(f"{run} has nothing to draw: no configuration was measured")
        written += exports.write({f"{name}.svg": found.file() for name, found in pictures.items()}, plots)
    if console.state.json:
        console.document({"schema_version": 1, "written": [str(path) for path in written], "exit_code": 0})
    elif written:
        for path in written:
            console.result(str(path))
    else:
        console.result(as_markdown(report))


def _compared(baseline: str, results: "RunResults", output_dir: Path, across: bool) -> "Comparison":
    from zbench.analysis.compare import Settings, compare_runs
    from zbench.analysis.sources import load_results

    return compare_runs(load_results(baseline, output_dir), results, Settings(across=across))
