"""What `tune`, `worker` and a `sweep` with a search method share: from a request to table and exit code."""

import contextlib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.cli import console
from zbench.cli.sweeping import Request
from zbench.errors import ExitCode, UsageError, ZbenchError
from zbench.launch.capacity import check_world_size
from zbench.launch.trial import TrialRunner
from zbench.record import environment, lines
from zbench.record.record import Record
from zbench.record.store import RunDirectory, StorageError, load_records
from zbench.report.live import view
from zbench.report.search import print_search
from zbench.report.table import print_results
from zbench.spec.dump import sweep_document
from zbench.spec.sweep import SweepSpec

if TYPE_CHECKING:  # Optuna is imported where a search begins, not with the command line
    from zbench.launch.slurm import SlurmOptions
    from zbench.tune.session import Outcome, Runner, Task


def perform_search(
    request: Request,
    *,
    storage: str | None = None,
    study: str | None = None,
    slurm: "SlurmOptions | None" = None,
) -> ExitCode:
    """Search, print the table and what was found (or the document), and return the exit code."""
    from zbench.tune.report import search_document
    from zbench.tune.session import Task

    _check(request.sweep, elsewhere=slurm is not None)
    facts = _environment(request)
    if storage is not None:
        _try_storage(storage)
    directory = _directory(request, facts)
    task = Task(request.sweep, request.base_dir, facts, storage, study)
    found, failure = _run(task, directory, slurm, fresh=request.run is None)
    records = load_records(directory.path)
    code = _code(found, failure, records)
    document = None if found is None else search_document(found, request.sweep.objective, records)
    if document is not None:
        (directory.path / "search.json").write_text(json.dumps(document, indent=2) + "\n")
    _show(request, directory.path, records, code, document, failure)
    return code


def work(
    storage: str, study: str, base_dir: Path, output_dir: Path, slurm: "SlurmOptions | None" = None
) -> ExitCode:
    """Pull trials of a study until there are none left; return the exit code."""
    from zbench.tune.ledger import load_study
    from zbench.tune.session import Task
    from zbench.tune.storage import reaching, relational_storage

    opened = relational_storage(storage)
    with reaching(storage):
        _, identity = load_study(opened, study)
    opened.engine.dispose()
    request = Request(identity.sweep, base_dir, output_dir)
    _check(identity.sweep, elsewhere=slurm is not None)
    facts = _environment(request)
    directory = _directory(request, facts)
    task = Task(identity.sweep, base_dir, facts, storage, study, is_worker=True)
    found, failure = _run(task, directory, slurm, fresh=True)
    records = load_records(directory.path) if directory.path.exists() else []
    code = failure_code(failure) if failure is not None else ExitCode.PASS
    if console.state.json:
        console.document(_document(directory.path, records, code, None, failure) | {"study": study})
    if failure is not None:
        console.error(str(failure) or "interrupted")
    elif found is not None:
        console.note(f"{found.stopped}; {len(records)} records of study {study} in {directory.path}")
    return code


def failure_code(failure: BaseException) -> ExitCode:
    """Return the exit code of what cut a search short."""
    return failure.exit_code if isinstance(failure, ZbenchError) else ExitCode.INTERRUPTED


def _run(
    task: "Task", directory: RunDirectory, slurm: "SlurmOptions | None", *, fresh: bool
) -> tuple["Outcome | None", ZbenchError | KeyboardInterrupt | None]:
    """Return what was found, or what cut it short; a fresh directory without a record does not stay."""
    from zbench.tune.session import Session

    objective, quiet = task.sweep.objective, console.state.quiet
    try:
        with (
            directory,
            view(console.rich_console(stderr=True), objective, quiet=quiet) as show,
            _runner(directory.path, task.base_dir, slurm) as runner,
        ):
            return Session(task, directory, runner, show).run(), None
    except BrokenPipeError:
        raise
    except (ZbenchError, KeyboardInterrupt, OSError) as error:
        if isinstance(error, OSError):  # a full disk strikes logs and scratch files before it strikes records
            error = StorageError(f"cannot go on: {error}; mend that and use --resume")
        if fresh and directory.discard_if_empty():
            raise error from None
        return None, error


def _runner(
    path: Path, base_dir: Path, slurm: "SlurmOptions | None"
) -> "contextlib.AbstractContextManager[Runner]":
    """Return what runs trials: processes on this machine, or jobs."""
    if slurm is None:
        return TrialRunner(path, base_dir)
    from zbench.launch.slurm import SlurmRunner

    return SlurmRunner(path, base_dir, slurm)


def _code(
    found: "Outcome | None", failure: ZbenchError | KeyboardInterrupt | None, records: Sequence[Record]
) -> ExitCode:
    """Return what a search means: without a feasible and correct configuration it has not done its job."""
    if failure is not None or found is None:
        return failure_code(failure or KeyboardInterrupt())
    if any(record.correctness.verdict in ("drifted", "wrong") for record in records):
        return ExitCode.CORRECTNESS
    return ExitCode.PASS if found.final.best is not None else ExitCode.TRIALS_FAILED


def _show(
    request: Request,
    path: Path,
    records: list[Record],
    code: ExitCode,
    document: dict[str, Any] | None,
    failure: ZbenchError | KeyboardInterrupt | None,
) -> None:
    if console.state.json:
        console.document(_document(path, records, code, document, failure))
    elif records:
        print_results(console.rich_console(), records, request.sweep.objective)
        if document is not None:
            print_search(console.rich_console(), document, records)
    if failure is not None:
        console.error(f"{str(failure) or 'interrupted'}; {len(records)} records are kept, continue with")
        words = ["zbench", "tune", *([str(request.source)] if request.source else []), "--resume", str(path)]
        console.note(f"  {shlex.join(words)}")
    elif not console.state.json:
        console.note(f"results in {path}")


def _document(
    path: Path,
    records: Sequence[Record],
    code: ExitCode,
    search: dict[str, Any] | None,
    failure: BaseException | None,
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema_version": 1,
        "run_id": path.name,
        "run_dir": str(path),
        "trials": [lines.jsonable(record) for record in records],
        "best": search["best"] if search else None,
        "search": search,
        "exit_code": int(code),
    }
    if failure is not None:
        document["error"] = {"kind": type(failure).__name__, "message": str(failure) or "interrupted"}
    return document


def _check(sweep: SweepSpec, *, elsewhere: bool) -> None:
    """Raise UsageError for a sweep that cannot be searched. elsewhere: its ranks need no room here."""
    if sweep.verify.mode == "off":
        raise UsageError("a best needs a verdict: set verify.mode to reference or full to search this sweep")
    if elsewhere:
        return
    sizes = sweep.axes.get("world_size")
    check_world_size(max([sweep.run.world_size, *(sizes if isinstance(sizes, list) else [])]))


def _try_storage(url: str) -> None:
    """Reach the storage once before anything is made on disk."""
    from zbench.tune.storage import relational_storage

    relational_storage(url).engine.dispose()


def _environment(request: Request) -> dict[str, Any]:
    from zbench.tune.storage import redacted_arguments

    return environment.collect(
        command=redacted_arguments(sys.argv[1:]),
        sweep_file=str(request.source) if request.source else None,
        base_dir=str(request.base_dir),
        settings=list(request.settings),
        single=False,
    )


def _directory(request: Request, facts: dict[str, Any]) -> RunDirectory:
    if request.run is not None:
        return RunDirectory.open(request.run)
    return RunDirectory.create(
        request.output_dir, request.sweep.name, spec=sweep_document(request.sweep), environment=facts
    )
