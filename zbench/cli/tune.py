"""`zbench tune`: search the axes of a sweep for the best configuration. `sweep` uses it, too."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from zbench.app.request import Request, to_search, tracked
from zbench.app.tune import Study, search, search_document
from zbench.cli import console, options
from zbench.cli.conclusion import Conclusion
from zbench.cli.plan import print_plan, starting_nothing
from zbench.cores import use_cores
from zbench.errors import ExitCode, UsageError
from zbench.launch.executors import Backend, backend_of
from zbench.scratch import use_state_folder
from zbench.spec.metrics import METRICS

ALONE = Study()
_UNLIMITED_TRIALS = 1_000_000


def command(
    file: options.OptionalSweepFile = None,
    objective: Annotated[
        list[str],
        typer.Option(
            metavar="DIRECTION:METRIC", help="Such as maximize:tokens_per_s; repeatable for several."
        ),
    ] = [],  # noqa: B006 - Typer reads the default, nobody changes it
    budget: Annotated[
        str | None, typer.Option(metavar="BUDGET", help="When to stop: 40trials, 20min or 40trials,20min.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Largest device memory of a rank, such as 2Gi.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="METHOD", help="tpe (default), nsga2, random, grid or covering.")
    ] = None,
    storage: options.Storage = None,
    study: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the study in --storage. Default: the sweep's name."),
    ] = None,
    slurm: options.Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    ray: options.Ray = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
    scratch: options.Scratch = None,
    cores: options.Cores = None,
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    resume: options.Resume = None,
    dry_run: options.DryRun = False,
    repeats: options.Repeats = None,
    timeout: options.Timeout = None,
    seed: options.Seed = None,
    log: options.Log = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Search for the fastest configuration that fits and is correct, and measure it again at the end.

    Every trial is verified. The search avoids configurations like those that
    were incorrect, too large or crashed. At the end, the best configuration
    and those near it run again in turns, as often as run.repeats says.
    """
    if file is None and resume is None:
        raise UsageError("expected a sweep file (or --resume RUN); try `zbench tune quickstart`")
    use_state_folder(scratch, console.warn)
    settings = options.run_settings(overrides, repeats=repeats, timeout=timeout, seed=seed)
    if seed is not None:
        settings.append(f"search.seed={seed}")
    asked = _search_settings(objective=objective, budget=budget, memory=memory)
    backend = backend_of(slurm, ray, console.warn)  # before the file: world_size may count its nodes
    with starting_nothing(dry_run):
        request = to_search(file, resume, output_dir, [*settings, *asked], method)
        use_cores(cores, request.sweep.run.world_size)
        if dry_run:
            print_plan(request.sweep)
            return
    raise typer.Exit(perform_search(tracked(request, log), study=Study(storage, study), backend=backend))


def _search_settings(*, objective: Sequence[str], budget: str | None, memory: str | None) -> list[str]:
    """Return the flags of a search as `--set` texts; UsageError for an invalid one."""
    from zbench.tune.stop import parse_budget

    settings: list[str] = []
    goals: dict[str, list[str]] = {"maximize": [], "minimize": []}
    for text in objective:
        way, sign, metric = text.partition(":")
        if not sign or way not in goals:
            name = text if text in METRICS else "METRIC"
            raise UsageError(
                f"--objective {text!r} has no direction: expected maximize:{name} or minimize:{name}"
            )
        goals[way].append(metric)
    if objective:
        settings += [f"objective.{way}={json.dumps(metrics)}" for way, metrics in goals.items()]
    if budget is not None:
        trials, seconds = parse_budget(budget)
        settings.append(f"search.trials={trials or _UNLIMITED_TRIALS}")
        settings += [f"search.budget={seconds}"] if seconds is not None else []
    if memory is not None:
        settings.append(
            f'objective.subject_to.peak_device_bytes="<= {options.memory_size("--memory", memory)}"'
        )
    return settings


def perform_search(request: Request, *, study: Study = ALONE, backend: Backend = None) -> ExitCode:
    """Search, print the table and the search's outcome (or the document), and return the exit code."""
    done = search(request, console.voice(), study, backend)
    document = search_document(request, done)
    return Conclusion(request, done.path, done.records, done.exit_code, done.failure, "tune").show(
        search=document
    )
