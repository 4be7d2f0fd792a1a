"""`zbench prune`: remove files of runs that zbench can create again, and what killed commands left."""

from typing import Annotated

import typer

from zbench.cli import console, options
from zbench.errors import UsageError
from zbench.launch.cache import Removable, removable
from zbench.report.text import plural
from zbench.units import format_bytes

_KEPT = "kept: records, sweep files, studies, baselines, tags and logs of failures"


def command(
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Remove files unchanged for this long, such as 12h.")
    ] = "1d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print which files would be removed, and remove nothing.")
    ] = False,
) -> None:
    """Remove files of runs that zbench can create again, and what killed commands left.

    Removes references of interrupted runs (a resumed run computes them
    again), traces, logs of successful repeats, environments of paired
    comparisons, runs without a record and unfinished drafts. Keeps records,
    sweep files, studies, baselines, tags and logs of failures, and all
    files of a run that is in progress.
    """
    age_s = options.seconds(older_than, "--older-than")
    if older_than[-1:].isdigit():
        raise UsageError(f"--older-than: expected a time with a unit, such as 12h, got {older_than!r}")
    folders = removable(output_dir, older_than_s=age_s)
    removed = folders if dry_run else [one for one in folders if _removed(one)]
    if console.state.json:
        rows = [{"kind": one.kind, "path": str(one.path), "bytes": one.size} for one in removed]
        console.document({"dry_run": dry_run, "removed": rows})
        return
    for kind in dict.fromkeys(one.kind for one in removed):
        sizes = [one.size for one in removed if one.kind == kind]
        console.result(f"{format_bytes(sum(sizes))} in {plural(len(sizes), 'place')}: {kind}")
    if not removed:
        console.result(f"nothing to remove that has not changed for {older_than}")
        return
    total = format_bytes(sum(one.size for one in removed))
    console.result(
        f"{'would remove' if dry_run else 'removed'} {total}, unchanged for {older_than} or longer; {_KEPT}"
    )


def _removed(one: Removable) -> bool:
    """Remove a folder and return whether that succeeded; warn if not."""
    try:
        one.remove()
    except UsageError as error:
        console.warn(f"not removed: {error}")
        return False
    return True
