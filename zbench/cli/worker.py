"""`zbench worker`: run trials of a shared study on this host."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.cli import console, options
from zbench.cli.tune import work
from zbench.errors import UsageError
from zbench.launch.executors import backend_of


def command(
    storage: options.Storage = None,
    study: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the study.")] = None,
    base_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the sweep's relative paths. Default: this one."),
    ] = None,
    slurm: options.Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    ray: options.Ray = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Run trials of a search that `zbench tune FILE --storage URL` started, until none is left.

    Any number of workers on any number of hosts can share a search; none
    repeats another's trial. If a worker is lost, another one runs its trials.
    """
    if storage is None or study is None:
        raise UsageError(
            "expected --storage URL (or ZBENCH_STORAGE) and --study NAME; give those of `zbench tune`"
        )
    here = base_dir or Path.cwd()
    raise typer.Exit(work(storage, study, here, output_dir, backend_of(slurm, ray, console.warn)))
