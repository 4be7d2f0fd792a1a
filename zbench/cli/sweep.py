"""`zbench sweep`: every configuration of a sweep file, each with its verdict; `run` shares what is here."""

import json
import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from zbench.analysis.adaptive_repeats import contenders
from zbench.cli import console, options
from zbench.cli.conclusion import (
    Conclusion,
    Interruption,
    Request,
    carried_out,
    exit_code,
    facts,
    failure_code,
    is_incorrect,
    tracked,
    warn_before,
)
from zbench.cli.plan import print_plan, starting_nothing
from zbench.errors import ExitCode, OutOfTimeError, UsageError
from zbench.launch.events import OnEvent
from zbench.launch.executor import targets_for
from zbench.launch.executors import Backend, backend_of, make_executor, require_room
from zbench.launch.sweep import SweepPlan, SweepRun
from zbench.record.record import Record
from zbench.record.secrets import MASK, masked
from zbench.record.store import RunDirectory, load_environment, resolve_run
from zbench.spec.expand import expand
from zbench.spec.keys import leaves
from zbench.spec.load import load_sweep, sweep_file, sweep_from_mapping
from zbench.spec.sweep import SearchSpec, SweepSpec, sweep_document
from zbench.spec.trial import NOT_IDENTITY

_HOW_OFTEN = frozenset(f"run.{key}" for key in NOT_IDENTITY - {"memory_limit"})
"""Keys that may change when a run is continued: how often and how long configurations are measured."""


def command(
    file: options.OptionalSweepFile = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    resume: options.Resume = None,
    slurm: options.Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    ray: options.Ray = None,
    dry_run: options.DryRun = False,
    repeats: options.Repeats = None,
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
    wanted = options.run_settings(overrides, repeats=repeats, timeout=timeout, seed=seed)
    most = options.seconds(max_time, "--max-time")
    with starting_nothing(dry_run):
        if resume is not None:
            request = resumed(resume, output_dir, file, wanted)
        elif file is None:
            raise UsageError("expected a sweep file (or --resume RUN); try `zbench sweep quickstart`")
        else:
            request = from_file(file, output_dir, wanted)
        if dry_run:
            print_plan(request.sweep)
            return
    request = tracked(request, log)
    backend = backend_of(slurm, ray, console.warn)
    if request.sweep.search.is_listed:
        raise typer.Exit(perform(request, backend=backend, max_seconds=most))
    if max_time is not None:
        raise UsageError("--max-time does not apply to a search; use `--set search.budget=TIME`")
    from zbench.cli.tune import perform_search

    raise typer.Exit(perform_search(request, backend=backend))


def from_file(file: Path, output_dir: Path, settings: Sequence[str]) -> Request:
    """Return the request to run a sweep file."""
    file = sweep_file(file)
    sweep = load_sweep(file, settings)
    return Request(sweep, file.absolute().parent, output_dir, None, file.absolute(), tuple(settings))


def single(file: Path | None, output_dir: Path, settings: Sequence[str]) -> Request:
    """Return the request to run one configuration: a file's without its axes, or the default one."""
    if file is None:
        sweep = sweep_from_mapping({"name": "run"}, settings, inputs=True)
        return Request(sweep, Path.cwd(), output_dir, settings=tuple(settings))
    whole = from_file(file, output_dir, settings)
    return replace(whole, sweep=_without_axes(whole.sweep), single=True)


def resumed(run: str, output_dir: Path, file: Path | None, settings: Sequence[str]) -> Request:
    """Return the request to continue a run, after checking that its sweep is still the same.

    The sweep is read again from the file it came from (or the one given), with the settings it was started
    with. settings: may change how often and how long configurations are measured, and nothing else.
    """
    path = resolve_run(run, output_dir)
    invocation = load_environment(path).get("invocation", {})
    recorded = load_sweep(path / "spec.yaml", environ={}, inputs=False)
    named, kept = invocation.get("sweep_file"), tuple(invocation.get("settings", ()))
    source = sweep_file(file) if file else Path(named) if named else None
    is_there = source is not None and source.exists()
    if file is not None and not is_there:
        raise UsageError(f"no such file: {file}")
    has_secrets = MASK in json.dumps(sweep_document(recorded))
    if has_secrets and (not is_there or any(MASK in text for text in kept)):
        raise UsageError(
            f"{path.name} cannot be resumed: its record masks its secrets, and no sweep file holds them; have"
            " the sweep file read them from the environment, and start a new run"
        )

    def read(*more: str) -> SweepSpec:
        if source is None or not is_there:
            return load_sweep(path / "spec.yaml", more, environ={}, inputs=False)
        sweep = load_sweep(source, [*kept, *more])
        return _without_axes(sweep) if invocation.get("single") else sweep

    base_dir = Path(invocation.get("base_dir") or path)
    if source is not None and is_there:
        what = f"{source} has changed since {path.name} was started"
        remedy = "restore the file to continue that run, or start a new one without --resume"
        _require_same(recorded, read(), what, remedy)
        base_dir = source.absolute().parent
    wanted = read(*settings)
    what = f"--resume continues {path.name} as it was started"
    remedy = "leave that out, or start a new run (of a run that exists only {} can be changed)"
    _require_same(recorded, wanted, what, remedy.format(", ".join(sorted(_HOW_OFTEN))), _HOW_OFTEN)
    return Request(wanted.placed(base_dir), base_dir, output_dir, path, source, kept, added=tuple(settings))


def perform(request: Request, *, detailed: bool = False, **how: Any) -> ExitCode:
    """Run the sweep (how: see `measured`), print its table (or all figures) or document, and return the exit
    code.
    """
    path, records, failure = measured(request, **how)
    if failure is None or (isinstance(failure, OutOfTimeError) and is_incorrect(records)):
        code = exit_code(records)
    else:
        code = failure_code(failure)
    return Conclusion(request, path, records, code, failure, "sweep").show(detailed=detailed)


def measured(
    request: Request,
    *,
    backend: Backend = None,
    max_seconds: float = math.inf,
    trace: bool = False,
) -> tuple[Path, Sequence[Record], Interruption | None]:
    """Run the sweep; return the run directory, its records, and what cut the run short."""
    expansion = expand(request.sweep)
    warn_before(request.sweep, expansion)
    require_room(expansion.trials, request.base_dir, backend)
    sweep = request.sweep
    plan = SweepPlan(
        expansion,
        seed=sweep.run.seed,
        contenders=lambda records: contenders(records, sweep.objective),
        max_seconds=max_seconds,
        trace=trace,
    )

    def run(directory: RunDirectory, tell: OnEvent) -> None:
        targets = targets_for(expansion.trials)
        executor = partial(make_executor, directory.path, request.base_dir, backend, targets=targets)
        SweepRun(plan, directory, executor, on_event=tell).run()

    about = facts(request, sys.argv[1:])
    directory, _, failure = carried_out(request, about, run, measured_here=backend is None)
    return directory.path, directory.records(), failure


def _without_axes(sweep: SweepSpec) -> SweepSpec:
    return sweep.model_copy(update={"axes": {}, "exclude": [], "include": [], "search": SearchSpec()})


def _require_same(
    recorded: SweepSpec, now: SweepSpec, what: str, remedy: str, free: Collection[str] = ()
) -> None:
    """Raise UsageError where a sweep is another one than was recorded, but for the keys in `free`."""
    before, after = (dict(leaves(masked(sweep_document(sweep)))) for sweep in (recorded, now))
    pairs = {key: (before.get(key, "absent"), after.get(key, "absent")) for key in {**before, **after}}
    changes = [
        f"{key} was {old}, is {new}" for key, (old, new) in pairs.items() if key not in free and old != new
    ]
    if changes:
        more = f" (and {len(changes) - 1} more keys)" if len(changes) > 1 else ""
        raise UsageError(f"{what}: {changes[0]}{more}; {remedy}")
