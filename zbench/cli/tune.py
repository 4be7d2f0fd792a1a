"""`zbench tune`: search a sweep's space for the best configuration that fits and is correct."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.cli.options import (
    DEFAULT_OUTPUT_DIR,
    Log,
    OutputDir,
    Overrides,
    Repeats,
    Seed,
    Slurm,
    Timeout,
    common_flags,
    settings,
)
from zbench.errors import UsageError

Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="ZBENCH_STORAGE",
        help="Database that hosts share, as postgresql://user@host/db; a password is better kept in "
        "PGPASSWORD, ~/.pgpass or ZBENCH_STORAGE. Default: a file in the run directory.",
    ),
]


@common_flags()
def command(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Sweep file: YAML, TOML or JSON.")
    ] = None,
    objective: Annotated[
        list[str],
        typer.Option(
            metavar="DIRECTION:METRIC", help="As maximize:tokens_per_s; repeat it for several objectives."
        ),
    ] = [],  # noqa: B006 - Typer reads the default, nobody changes it
    budget: Annotated[
        str | None, typer.Option(metavar="BUDGET", help="As 40trials, 20min, or both: 40trials,20min.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most device memory of a rank, as 2Gi.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="METHOD", help="tpe (default), nsga2, random or grid.")
    ] = None,
    storage: Storage = None,
    study: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the study in --storage (default: the sweep's)."),
    ] = None,
    warm_start: Annotated[
        list[Path], typer.Option("--warm-start", metavar="DIR", help="Earlier results to learn from.")
    ] = [],  # noqa: B006 - Typer reads the default, nobody changes it
    run_implied_oom: Annotated[
        bool,
        typer.Option("--run-implied-oom", help="Run points that are larger than one that ran out of memory."),
    ] = False,
    slurm: Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue a run: its path, its id, or `last`.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the trials and run nothing.")] = False,
    repeats: Repeats = None,
    timeout: Timeout = None,
    seed: Seed = None,
    log: Log = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Search for the best configuration that fits and is correct, and measure it again before saying so.

    Every trial is verified; one that is wrong, too large or crashes teaches the search where not to look. The
    best and its runner-up get fresh repeats (run.repeats) at the end.
    """
    from zbench.cli import search_flags, tuning
    from zbench.cli.conclusion import tracked

    if file is None and resume is None:
        raise UsageError("expected a sweep file (or --resume RUN); try `zbench tune quickstart`")
    wanted = settings(overrides, repeats=repeats, timeout=timeout, seed=seed)
    wanted += [f"search.seed={seed}"] * (seed is not None)
    asked = search_flags.search_settings(
        objective=objective, budget=budget, memory=memory, warm_start=warm_start, run_implied=run_implied_oom
    )
    request = search_flags.request_for(file, resume, output_dir, [*wanted, *asked], method)
    if dry_run:
        from zbench.cli.plan import print_plan

        print_plan(request.sweep, output_dir)
        return
    jobs = search_flags.slurm_options(slurm)
    raise typer.Exit(tuning.perform_search(tracked(request, log), storage=storage, study=study, slurm=jobs))
