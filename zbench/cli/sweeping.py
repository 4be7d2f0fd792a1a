"""What `sweep` and `run` share: from a sweep to records, table and exit code."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zbench.cli import console
from zbench.errors import ExitCode, UsageError, ZbenchError
from zbench.launch.capacity import check_world_size
from zbench.launch.slurm import SlurmOptions
from zbench.launch.sweep import SweepPlan, SweepRun
from zbench.record import environment, lines
from zbench.record.record import Record
from zbench.record.store import RunDirectory, load_environment, load_records, resolve_run
from zbench.record.summary import best, summarize
from zbench.report.detail import print_configuration
from zbench.report.live import view
from zbench.report.table import print_results
from zbench.spec.dump import sweep_document
from zbench.spec.expand import expand
from zbench.spec.inputs import check_inputs
from zbench.spec.load import load_sweep, sweep_from_mapping
from zbench.spec.sweep import SearchSpec, SweepSpec


@dataclass(frozen=True, slots=True)
class Request:
    """A sweep to run: what, where its relative paths begin, and where results go.

    run: the run directory to continue, None for a new one. source: the sweep file, if there is one.
    settings: the `--set` texts that shaped the sweep. single: only the file's base configuration is run.
    """

    sweep: SweepSpec
    base_dir: Path
    output_dir: Path
    run: Path | None = None
    source: Path | None = None
    settings: tuple[str, ...] = ()
    single: bool = False


def from_file(file: Path, output_dir: Path, settings: Sequence[str]) -> Request:
    """Return the request to run a sweep file."""
    sweep = load_sweep(file, settings)
    return Request(sweep, file.absolute().parent, output_dir, None, file.absolute(), tuple(settings))


def single(file: Path | None, output_dir: Path, settings: Sequence[str]) -> Request:
    """Return the request to run one configuration: a file's without its axes, or the default one."""
    if file is None:
        sweep = sweep_from_mapping({"name": "run"}, settings)
        check_inputs(sweep, Path.cwd())
        return Request(sweep, Path.cwd(), output_dir, settings=tuple(settings))
    whole = from_file(file, output_dir, settings)
    return replace(whole, sweep=_without_axes(whole.sweep), single=True)


def resumed(run: str, output_dir: Path, file: Path | None, settings: Sequence[str]) -> Request:
    """Return the request to continue a run, after checking that its sweep is still the same.

    The sweep is read again from the file it came from (or the one given), with the settings it was started
    with.
    """
    path = resolve_run(run, output_dir)
    invocation = load_environment(path).get("invocation", {})
    recorded = load_sweep(path / "spec.yaml", environ={}, inputs=False)
    source = file or (Path(invocation["sweep_file"]) if invocation.get("sweep_file") else None)
    kept = (*invocation.get("settings", ()), *settings)
    base_dir = Path(invocation.get("base_dir") or path)
    if source is not None and source.exists():
        now = load_sweep(source, kept)
        _require_same(recorded, _without_axes(now) if invocation.get("single") else now, path, source)
        base_dir = source.absolute().parent
    elif file is not None:
        raise UsageError(f"no such file: {file}")
    elif settings:
        raise UsageError(
            "--resume continues a run as it was started; settings cannot be changed, leave them out"
        )
    return Request(recorded, base_dir, output_dir, path, source, kept)


def perform(request: Request, *, detailed: bool = False, slurm: SlurmOptions | None = None) -> ExitCode:
    """Run the sweep, print its table (or all figures) or document, and return the exit code."""
    expansion = expand(request.sweep)
    if slurm is None:
        check_world_size(max((trial.run.world_size for trial in expansion.trials), default=1))
    directory = _directory(request)
    plan = SweepPlan(expansion, seed=request.sweep.run.seed, imply_oom=request.sweep.search.imply_oom)
    failure: ZbenchError | KeyboardInterrupt | None = None
    with directory:
        with view(
            console.rich_console(stderr=True), request.sweep.objective, quiet=console.state.quiet
        ) as show:
            try:
                SweepRun(plan, directory, request.base_dir, on_event=show, slurm=slurm).run()
            except (ZbenchError, KeyboardInterrupt) as error:
                failure = error
        if failure is not None and request.run is None and directory.discard_if_empty():
            raise failure
        records = load_records(directory.path)
    return _conclude(request, directory.path, records, failure, detailed)


def exit_code(records: Sequence[Record]) -> ExitCode:
    """Return what records mean for the command's status: wrong results weigh more than trials that failed."""
    if any(record.correctness.verdict in ("drifted", "wrong") for record in records):
        return ExitCode.CORRECTNESS
    if any(_failed(record) for record in records):
        return ExitCode.TRIALS_FAILED
    return ExitCode.PASS


def _failed(record: Record) -> bool:
    pruned = record.error is not None and record.error.kind == "pruned"
    return record.outcome in ("oom", "timeout", "crashed") and not pruned


def _directory(request: Request) -> RunDirectory:
    if request.run is not None:
        return RunDirectory.open(request.run)
    facts = environment.collect(
        command=sys.argv[1:],
        sweep_file=str(request.source) if request.source else None,
        base_dir=str(request.base_dir),
        settings=list(request.settings),
        single=request.single,
    )
    return RunDirectory.create(
        request.output_dir, request.sweep.name, spec=sweep_document(request.sweep), environment=facts
    )


def _conclude(
    request: Request,
    path: Path,
    records: list[Record],
    failure: ZbenchError | KeyboardInterrupt | None,
    detailed: bool,
) -> ExitCode:
    """Print what there is and return the exit code, also of a run that was cut short."""
    code = exit_code(records)
    if isinstance(failure, KeyboardInterrupt):
        code = ExitCode.INTERRUPTED
    elif failure is not None:
        code = failure.exit_code
    if console.state.json:
        console.document(_document(request, path, records, code, failure))
    elif detailed:
        for summary in summarize(records):
            print_configuration(console.rich_console(), summary, path)
    elif records:
        print_results(console.rich_console(), records, request.sweep.objective, path)
    if failure is not None:
        said = "interrupted" if isinstance(failure, KeyboardInterrupt) else str(failure)
        console.error(f"{said}; {len(records)} records are kept, continue with")
        console.note(f"  {_resume_command(request, path)}")
    elif not console.state.json:
        console.note(f"results in {path}")
    return code


def _document(
    request: Request, path: Path, records: list[Record], code: ExitCode, failure: BaseException | None
) -> dict[str, Any]:
    winner = best(summarize(records), request.sweep.objective)
    document: dict[str, Any] = {
        "schema_version": 1,
        "run_id": path.name,
        "run_dir": str(path),
        "trials": [lines.jsonable(record) for record in records],
        "best": winner.trial_id if winner else None,
        "exit_code": int(code),
    }
    if failure is not None:
        message = str(failure) or "interrupted"
        document["error"] = {"kind": type(failure).__name__, "message": message}
    return document


def _resume_command(request: Request, path: Path) -> str:
    source = [os.path.relpath(request.source)] if request.source else []
    return shlex.join(["zbench", "sweep", *source, "--resume", str(path)])


def _without_axes(sweep: SweepSpec) -> SweepSpec:
    return sweep.model_copy(update={"axes": {}, "exclude": [], "include": [], "search": SearchSpec()})


def _require_same(recorded: SweepSpec, now: SweepSpec, run: Path, source: Path) -> None:
    """Raise UsageError naming the keys in which the sweep file differs from what the run was started with."""
    before, after = _flat(sweep_document(recorded)), _flat(sweep_document(now))
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    if changed:
        first = changed[0]
        was, is_now = before.get(first, "absent"), after.get(first, "absent")
        more = f" (and {len(changed) - 1} more keys)" if len(changed) > 1 else ""
        raise UsageError(
            f"{source} has changed since {run.name} was started: {first} was {was}, is {is_now}{more}; "
            "restore the file to continue that run, or start a new one without --resume"
        )


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return found
