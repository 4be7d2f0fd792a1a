"""What the shell completes: runs, and the trials of the run that is already on the command line."""

from pathlib import Path

import typer


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """Return `last`, the sweeps' names and the run ids that begin so, the newest first."""
    from zbench.record.store import find_runs

    found = list(reversed(find_runs(_output_dir(context))))
    names = ["last", *(path.parent.name for path in found), *(path.name for path in found)]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def trials(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of a run's trials that begin so, and `best`."""
    from zbench.errors import ZbenchError
    from zbench.record.store import load_records, resolve_run

    typed = [word for word in context.args if not word.startswith("-")]  # a line that ends in --trial
    run = next(iter(typed), None) or context.params.get("run") or context.params.get("source") or "last"
    try:
        records = load_records(resolve_run(str(run), _output_dir(context)))
    except ZbenchError:
        return []
    names = ["best", *(record.trial_id for record in records)]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete) and name.isprintable()]


def _output_dir(context: typer.Context) -> Path:
    return Path(context.params.get("output_dir") or "results")
