"""`zbench tune`: search the axes of a sweep for the best configuration. `worker` and `sweep` use it, too."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zbench.cli import console, options
from zbench.cli.conclusion import (
    Conclusion,
    Interruption,
    Request,
    carried_out,
    facts,
    failure_code,
    is_incorrect,
    tracked,
)
from zbench.cli.plan import print_plan, starting_nothing
from zbench.cli.sweep import from_file, resumed
from zbench.errors import ExitCode, UsageError
from zbench.launch.events import OnEvent
from zbench.launch.executor import targets_for
from zbench.launch.executors import Backend, backend_of, make_executor, require_room
from zbench.launch.trial import TrialRunner
from zbench.record.record import Record
from zbench.record.store import RunDirectory
from zbench.report.text import plural
from zbench.spec.document import read_sweep_file
from zbench.spec.load import sweep_file
from zbench.spec.metrics import METRICS
from zbench.spec.trial import TrialSpec

if TYPE_CHECKING:  # Optuna is imported where a search begins, not with the command line
    from zbench.tune.findings import SearchOutcome

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
    wanted = options.run_settings(overrides, repeats=repeats, timeout=timeout, seed=seed)
    wanted += [f"search.seed={seed}"] * (seed is not None)
    asked = _search_settings(objective=objective, budget=budget, memory=memory)
    with starting_nothing(dry_run):
        request = _request(file, resume, output_dir, [*wanted, *asked], method)
        if dry_run:
            print_plan(request.sweep)
            return
    backend = backend_of(slurm, ray, console.warn)
    raise typer.Exit(perform_search(tracked(request, log), storage=storage, study=study, backend=backend))


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


def _request(
    file: Path | None, resume: str | None, output_dir: Path, settings: Sequence[str], method: str | None
) -> Request:
    """Return the request to search a file's axes: by TPE, unless the file or the flag names a search."""
    if resume is not None:
        return resumed(resume, output_dir, file, settings)
    assert file is not None
    known = read_sweep_file(sweep_file(file)).data
    default = [] if "objective" in known else ["objective.maximize=[tokens_per_s]"]
    search = known.get("search")
    named = search.get("method") if isinstance(search, dict) else None
    chosen = method or (named if isinstance(named, str) and named not in ("grid", "covering") else "tpe")
    return from_file(file, output_dir, [*default, *settings, f"search.method={chosen}"])


def perform_search(
    request: Request,
    *,
    storage: str | None = None,
    study: str | None = None,
    backend: Backend = None,
) -> ExitCode:
    """Search, print the table and the search's outcome (or the document), and return the exit code."""
    from zbench.tune.findings import search_document

    directory, outcome, failure = _searched(request, storage, study, backend)
    records = directory.records()
    code = _code(outcome, failure, records)
    document = None if outcome is None else search_document(outcome, request.sweep.objective, records)
    if document is not None:
        (directory.path / "search.json").write_text(json.dumps(document, indent=2) + "\n")
    return Conclusion(request, directory.path, records, code, failure, "tune").show(search=document)


def work(storage: str, study: str, base_dir: Path, output_dir: Path, backend: Backend = None) -> ExitCode:
    """Run trials of a study until none is left; return the exit code."""
    from zbench.tune.ledger import load_sweep
    from zbench.tune.storage import reaching, relational_storage, require_existing

    require_existing(storage)
    opened = relational_storage(storage)
    with reaching(storage):
        sweep = load_sweep(opened, study)
    opened.engine.dispose()
    request = Request(sweep.placed(base_dir), base_dir, output_dir)
    directory, outcome, failure = _searched(request, storage, study, backend, is_worker=True)
    records = directory.records()
    code = failure_code(failure) if failure is not None else ExitCode.PASS
    if console.state.json:
        conclusion = Conclusion(request, directory.path, records, code, failure, "worker")
        console.document(conclusion.document(None, search=None, study=study), code)
    if failure is not None:
        console.error(str(failure) or "interrupted")
    elif outcome is not None:
        console.note(f"{outcome.stopped}; {plural(len(records), 'record')} of {study} in {directory.path}")
    return code


def _searched(
    request: Request,
    storage: str | None,
    study: str | None,
    backend: Backend,
    *,
    is_worker: bool = False,
) -> tuple[RunDirectory, "SearchOutcome | None", Interruption | None]:
    """Return the run directory, and the outcome or what cut the search short."""
    from zbench.tune.session import SearchTask, Session
    from zbench.tune.storage import redacted_arguments, relational_storage

    sweep = request.sweep
    if sweep.verify.mode == "off":
        raise UsageError("a search needs verdicts, but verify.mode is off; set it to reference or full")
    sizes = sweep.axes.get("world_size")
    known = sizes if isinstance(sizes, list) else [sweep.run.world_size]
    base = TrialSpec(workload=sweep.workload, run=sweep.run, engine=sweep.engine, verify=sweep.verify)
    runs = [sweep.run.model_copy(update={"world_size": size}) for size in known]
    require_room([base.model_copy(update={"run": run}) for run in runs], request.base_dir, backend)
    if storage is not None:
        relational_storage(storage).engine.dispose()  # reached once before anything is made on disk
    about = facts(request, redacted_arguments(sys.argv[1:]))
    task = SearchTask(sweep, request.base_dir, about, storage, study, is_worker=is_worker)

    def search(directory: RunDirectory, tell: OnEvent) -> "SearchOutcome":
        executor = make_executor(directory.path, request.base_dir, backend, targets=targets_for([base]))
        with TrialRunner(executor, directory.path) as runner:
            return Session(task, directory, runner, tell).run()

    return carried_out(request, about, search, measured_here=backend is None)


def _code(
    outcome: "SearchOutcome | None", failure: Interruption | None, records: Sequence[Record]
) -> ExitCode:
    """Return the exit code of a search, which fails if no configuration was feasible and correct."""
    if failure is not None or outcome is None:
        return failure_code(failure or KeyboardInterrupt())
    if is_incorrect(records):
        return ExitCode.CORRECTNESS
    return ExitCode.PASS if outcome.final.best is not None else ExitCode.TRIALS_FAILED
