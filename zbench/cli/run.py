"""`zbench run`: one configuration, from a sweep file without its axes, or from flags alone."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.app.request import single, tracked
from zbench.cli import console, options
from zbench.cli.plan import print_plan, starting_nothing
from zbench.cli.sweep import perform
from zbench.cores import use_cores
from zbench.launch.executors import backend_of
from zbench.scratch import use_state_folder


def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Sweep file; its axes are ignored."),
    ] = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
    scratch: options.Scratch = None,
    cores: options.Cores = None,
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    dry_run: options.DryRun = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Also trace a step: profiler trace, memory timeline, lower bounds."),
    ] = False,
    ray: options.Ray = None,
    repeats: options.Repeats = None,
    timeout: options.Timeout = None,
    seed: options.Seed = None,
    log: options.Log = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Run one configuration and show everything that was measured.

    Without FILE, it trains a small GPT on synthetic data.
    """
    use_state_folder(scratch, console.warn)
    settings = options.run_settings(overrides, repeats=repeats, timeout=timeout, seed=seed)
    backend = backend_of([], ray, console.warn)  # before the file: world_size may count its nodes
    with starting_nothing(dry_run):
        request = single(file, output_dir, settings)
        use_cores(cores, request.sweep.run.world_size)
        if dry_run:
            print_plan(request.sweep)
            return
    raise typer.Exit(perform(tracked(request, log), detailed=True, backend=backend, trace=trace))
