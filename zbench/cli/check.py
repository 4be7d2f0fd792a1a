"""`zbench check`: whether files are as zbench wrote them."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.cli import console, options
from zbench.errors import ExitCode, UsageError
from zbench.record.checking import checked
from zbench.record.store import BASELINES, resolve_run
from zbench.report.text import plural, printable


def command(
    place: Annotated[
        str,
        options.run_argument(
            "PLACE", "A run, a baseline, a site's directory, or a directory of results; default: `last`."
        ),
    ] = "last",
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Verify the digest or the checksums of every file of a run, a baseline, a site or a directory.

    Logs, studies, and a site's feed and badge have no digest. Exit code: 2
    if a file was changed or cannot be read.
    """
    baseline = output_dir / BASELINES / f"{place}.json"
    named = next((path for path in (Path(place), baseline) if path.exists()), None)
    files = list(checked(named or resolve_run(place, output_dir)))
    if not files:
        raise UsageError(f"{named} holds no run, baseline or site; name one of them")
    problems = [file.problem for file in files if file.problem]
    code = ExitCode.USAGE if problems else ExitCode.PASS
    if console.state.json:
        rows = [{"path": str(file.path), "problem": file.problem} for file in files]
        console.document({"files": rows}, code)
    else:
        for problem in problems:
            console.result(printable(problem))
        console.result(f"{plural(len(files), 'file')} checked, {len(problems) or 'none'} damaged")
    raise typer.Exit(code)
