"""`zbench sweep`: every configuration of a sweep file, each with its verdict."""

import typer

from zbench.cli.options import (
    DEFAULT_OUTPUT_DIR,
    DryRun,
    Log,
    MaxTime,
    OptionalSweepFile,
    OutputDir,
    Overrides,
    Repeats,
    Resume,
    RunImpliedOom,
    Seed,
    Slurm,
    Timeout,
    common_flags,
    seconds,
    settings,
)
from zbench.errors import UsageError


@common_flags()
def command(
    file: OptionalSweepFile = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    resume: Resume = None,
    run_implied_oom: RunImpliedOom = False,
    slurm: Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    dry_run: DryRun = False,
    repeats: Repeats = None,
    timeout: Timeout = None,
    seed: Seed = None,
    log: Log = [],  # noqa: B006 - Typer reads the default, nobody changes it
    max_time: MaxTime = None,
) -> None:
    """Run every configuration of a sweep file, and judge each one against plain PyTorch."""
    from zbench.cli import search_flags, sweeping
    from zbench.cli.conclusion import tracked

    wanted = settings(overrides, repeats=repeats, timeout=timeout, seed=seed)
    most = seconds(max_time, "--max-time")
    wanted += ["search.imply_oom=false"] * run_implied_oom
    if resume is not None:
        request = sweeping.resumed(resume, output_dir, file, wanted)
    elif file is None:
        raise UsageError("expected a sweep file (or --resume RUN); try `zbench sweep quickstart`")
    else:
        request = sweeping.from_file(file, output_dir, wanted)
    if dry_run:
        from zbench.cli.plan import print_plan

        print_plan(request.sweep, output_dir)
        return
    request = tracked(request, log)
    jobs = search_flags.slurm_options(slurm)
    if request.sweep.search.is_listed:
        raise typer.Exit(sweeping.perform(request, slurm=jobs, max_seconds=most))
    if max_time is not None:
        raise UsageError("--max-time is for a whole sweep; a search takes `--set search.budget=TIME`")
    from zbench.cli import tuning

    raise typer.Exit(tuning.perform_search(request, slurm=jobs))
