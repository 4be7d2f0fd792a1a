"""`zbench worker`: pull trials of a shared study and run them on this host."""

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
        typer.Option(metavar="DIR", help="Where relative paths of the sweep begin (default: here)."),
    ] = None,
    slurm: options.Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    ray: options.Ray = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Pull trials of a study that `zbench tune FILE --storage URL` began, until there are none left.

    Any number of workers on any number of hosts may do so; no point runs twice. Trials of a worker that is
    lost are run again by another one.
    """
    if storage is None or study is None:
        raise UsageError(
            "expected --storage URL (or ZBENCH_STORAGE) and --study NAME, as `zbench tune` got them"
        )
    here = base_dir or Path.cwd()
    raise typer.Exit(work(storage, study, here, output_dir, backend_of(slurm, ray, console.warn)))
