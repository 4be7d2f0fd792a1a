"""`zbench tune`: search a sweep's space for the best configuration that fits and is correct."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.cli.options import (
    DEFAULT_OUTPUT_DIR,
    DryRun,
    Log,
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
    settings,
)
from zbench.errors import UsageError

Objective = Annotated[
    list[str],
    typer.Option(
        metavar="DIRECTION:METRIC", help="As maximize:tokens_per_s; repeat it for several objectives."
    ),
]
Budget = Annotated[
    str | None, typer.Option(metavar="BUDGET", help="As 40trials, 20min, or both: 40trials,20min.")
]
MemoryLimit = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most device memory of a rank, as 2Gi.")
]
Method = Annotated[str | None, typer.Option(metavar="METHOD", help="tpe (default), nsga2, random or grid.")]
Study = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of the study in --storage (default: the sweep's)."),
]
WarmStart = Annotated[
    list[Path], typer.Option("--warm-start", metavar="DIR", help="Earlier results to learn from.")
]
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
    file: OptionalSweepFile = None,
    objective: Objective = [],  # noqa: B006 - Typer reads the default, nobody changes it
    budget: Budget = None,
    memory: MemoryLimit = None,
    method: Method = None,
    storage: Storage = None,
    study: Study = None,
    warm_start: WarmStart = [],  # noqa: B006 - Typer reads the default, nobody changes it
    run_implied_oom: RunImpliedOom = False,
    slurm: Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    resume: Resume = None,
    dry_run: DryRun = False,
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
