"""`zbench publish`: a static site of all runs, with trends, a feed of regressions and a badge."""

import os
import re
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from zbench.cli import console, options
from zbench.cli.history import checked_out
from zbench.errors import UsageError
from zbench.launch.revisions import git
from zbench.record.store import find_runs, load_tags
from zbench.report.site.publish import publish
from zbench.report.site.store import Site
from zbench.report.text import plural

_REMOTE = re.compile(r"(?:https://|ssh://)?(?:[^@/]*@)?([\w.-]+)[:/]([\w./~-]+?)(?:\.git)?/?")


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
    if commits is not None and not commits.startswith(("https://", "http://")):
        raise UsageError(
            f"--commits: expected an address such as https://example.org/project/commit/, got {commits!r}"
        )
    with checked_out(place, branch) as root:
        runs = find_runs(root)
        if not runs:
            raise UsageError(f"{place} has no run; run a sweep first, or name its directory")
        with closing(Site(to)) as site:
            address = _commits_at_origin() if commits is None else commits
            published = publish(site, runs, load_tags(root), address, console.warn)
    if console.state.json:
        console.document({"site": str(to), "runs": len(published), "written": site.written})
    else:
        console.note(f"{plural(len(published), 'run')}, {plural(site.written, 'file')} written")
        console.result(str(to / "index.html"))


def _commits_at_origin() -> str:
    """Return the address of commits on GitHub or at the remote `origin`; empty if it is not known."""
    server, repository = (os.environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY"))
    if server and repository:
        return f"{server}/{repository}/commit/"
    done = git("remote", "get-url", "origin")
    match = _REMOTE.fullmatch(done.stdout.decode(errors="replace").strip())
    return f"https://{match[1]}/{match[2]}/commit/" if match and "." in match[1] else ""
