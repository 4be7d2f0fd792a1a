"""`zbench publish`: a static site of all runs, with trends, a feed of regressions and a badge."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.app.history import publish
from zbench.cli import console, options
from zbench.report.text import plural


def command(
    to: Annotated[
        Path, typer.Option("--to", metavar="SITE", help="Directory of the site, a new or existing one.")
    ],
    directory: options.Directory = None,
    branch: options.Branch = None,
    commits: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address of commits, before the hash. Default: that of `origin`."),
    ] = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Write a static site of all runs: trends, changes, reports, a feed of regressions and a badge.

    Open SITE/index.html, or put SITE on GitHub Pages. Publishing again
    writes only what is new, and keeps runs whose records were deleted. To
    remove a run from the site, remove SITE/runs/SWEEP/RUN.json.
    """
    place = directory or output_dir
    voice = console.voice()
    runs, written = publish(place, to, voice, branch=branch, commits=commits)
    if console.state.json:
        console.document({"site": str(to), "runs": runs, "written": written})
    else:
        console.note(f"{plural(runs, 'run')}, {plural(written, 'file')} written")
        console.result(str(to / "index.html"))
