"""`zbench sweep`: every configuration of a sweep file, each with its verdict; `run` shares what is here."""

import math
from typing import Annotated

import typer

from zbench.app.request import Request, from_file, resumed, tracked
from zbench.app.runs import exit_code, failure_code, is_incorrect
from zbench.app.sweep import measured
from zbench.cli import console, options
from zbench.cli.conclusion import Conclusion
from zbench.cli.plan import print_plan, starting_nothing
from zbench.cli.tune import perform_search
from zbench.cores import use_cores
from zbench.errors import ExitCode, OutOfTimeError, UsageError
from zbench.launch.executors import Backend, backend_of
from zbench.scratch import use_state_folder


def command(
    file: options.OptionalSweepFile = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
    scratch: options.Scratch = None,
    cores: options.Cores = None,
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    resume: options.Resume = None,
    slurm: options.Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    ray: options.Ray = None,
    dry_run: options.DryRun = False,
    repeats: options.Repeats = None,
    separate: options.Separate = None,
    timeout: options.Timeout = None,
    seed: options.Seed = None,
    log: options.Log = [],  # noqa: B006 - Typer reads the default, nobody changes it
    max_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Start no repeat after this time, such as 20min; --resume continues later."
        ),
    ] = None,
) -> None:
    """Run every configuration of a sweep file, and judge each one against plain PyTorch."""
    use_state_folder(scratch, console.warn)
    settings = options.run_settings(overrides, repeats=repeats, separate=separate, timeout=timeout, seed=seed)
    most = options.seconds(max_time, "--max-time")
    backend = backend_of(slurm, ray, console.warn)  # before the file: world_size may count its nodes
    with starting_nothing(dry_run):
        if resume is not None:
            request = resumed(resume, output_dir, file, settings)
        elif file is None:
            raise UsageError("expected a sweep file (or --resume RUN); try `zbench sweep quickstart`")
        else:
            request = from_file(file, output_dir, settings)
        use_cores(cores, request.sweep.run.world_size)
        if dry_run:
            print_plan(request.sweep)
            return
    request = tracked(request, log)
    if request.sweep.search.is_listed:
        raise typer.Exit(perform(request, backend=backend, max_seconds=most))
    if max_time is not None:
        raise UsageError("--max-time does not apply to a search; use `--set search.budget=TIME`")
    raise typer.Exit(perform_search(request, backend=backend))


def perform(
    request: Request,
    *,
    backend: Backend = None,
    max_seconds: float = math.inf,
    trace: bool = False,
    detailed: bool = False,
) -> ExitCode:
    """Run the sweep, print its table (or all figures) or document, and return the exit code."""
    path, records, failure = measured(
        request, console.voice(), backend=backend, max_seconds=max_seconds, trace=trace
    )
    if failure is None or (isinstance(failure, OutOfTimeError) and is_incorrect(records)):
        code = exit_code(records)
    else:
        code = failure_code(failure)
    return Conclusion(request, path, records, code, failure, "sweep").show(detailed=detailed)
