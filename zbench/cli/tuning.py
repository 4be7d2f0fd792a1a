"""What `tune`, `worker` and a `sweep` with a search method share: from flags to table and exit code."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zbench.cli import console, sweeping
from zbench.cli.sweeping import Request
from zbench.errors import ExitCode, UsageError, ZbenchError
from zbench.launch.capacity import check_world_size
from zbench.launch.trial import TrialRunner
from zbench.record import environment, lines
from zbench.record.record import Record
from zbench.record.store import RunDirectory, load_records
from zbench.report.live import view
from zbench.report.search import print_search
from zbench.report.table import print_results
from zbench.spec.document import read_document
from zbench.spec.dump import sweep_document
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import SweepSpec
from zbench.tune.ledger import load_study
from zbench.tune.report import search_document
from zbench.tune.session import Outcome, Session, Task
from zbench.tune.stop import Budget
from zbench.tune.storage import reaching, redacted_arguments, relational_storage
from zbench.units import parse_bytes

_UNLIMITED_TRIALS = 1_000_000


def search_settings(
    *,
    objective: Sequence[str],
    budget: str | None,
    memory: str | None,
    warm_start: Sequence[Path],
    run_implied: bool,
) -> list[str]:
    """Return the flags of a search as `--set` texts; UsageError where one makes no sense."""
    found: list[str] = []
    goals = [_goal(text) for text in objective]
    if goals:
        for direction in ("maximize", "minimize"):
            names = [metric for way, metric in goals if way == direction]
            found.append(f"objective.{direction}={json.dumps(names)}")
    if budget is not None:
        limit = Budget.parse(budget)
        found.append(f"search.trials={limit.trials or _UNLIMITED_TRIALS}")
        found += [f"search.budget={limit.seconds}"] if limit.seconds is not None else []
    if memory is not None:
        found.append(f'objective.subject_to.peak_device_bytes="<= {_size(memory)}"')
    if warm_start:
        found.append(f"search.warm_start={json.dumps([str(path.absolute()) for path in warm_start])}")
    return [*found, *(["search.imply_oom=false"] if run_implied else [])]


def request_for(
    file: Path | None, resume: str | None, output_dir: Path, settings: Sequence[str], method: str | None
) -> Request:
    """Return the request to search a file's space; a file that says `grid` or nothing is searched by TPE."""
    if resume is not None:
        return sweeping.resumed(resume, output_dir, file, settings)
    assert file is not None
    data = read_document(file).data
    known = data if isinstance(data, dict) else {}
    default = [] if "objective" in known else ["objective.maximize=[tokens_per_s]"]
    chosen = method or _method_in(known)
    return sweeping.from_file(file, output_dir, [*default, *settings, f"search.method={chosen}"])


def perform_search(request: Request, *, storage: str | None = None, study: str | None = None) -> ExitCode:
    """Search, print the table and what was found (or the document), and return the exit code."""
    _check(request.sweep)
    facts = _environment(request)
    if storage is not None:
        _try_storage(storage)
    directory = _directory(request, facts)
    task = Task(request.sweep, request.base_dir, facts, storage, study)
    found, failure = _run(task, directory, fresh=request.run is None)
    records = load_records(directory.path)
    code = _code(found, failure, records)
    document = None if found is None else search_document(found, request.sweep.objective, records)
    if document is not None:
        (directory.path / "search.json").write_text(json.dumps(document, indent=2) + "\n")
    _show(request, directory.path, records, code, document, failure)
    return code


def work(storage: str, study: str, base_dir: Path, output_dir: Path) -> ExitCode:
    """Pull trials of a study until there are none left; return the exit code."""
    opened = relational_storage(storage)
    with reaching(storage):
        _, identity = load_study(opened, study)
    opened.engine.dispose()
    request = Request(identity.sweep, base_dir, output_dir)
    _check(identity.sweep)
    facts = _environment(request)
    directory = _directory(request, facts)
    task = Task(identity.sweep, base_dir, facts, storage, study, is_worker=True)
    found, failure = _run(task, directory, fresh=True)
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
    task: Task, directory: RunDirectory, *, fresh: bool
) -> tuple[Outcome | None, ZbenchError | KeyboardInterrupt | None]:
    """Return what was found, or what cut it short; a fresh directory without a record does not stay."""
    objective, quiet = task.sweep.objective, console.state.quiet
    try:
        with (
            directory,
            view(console.rich_console(stderr=True), objective, quiet=quiet) as show,
            TrialRunner(directory.path, task.base_dir) as runner,
        ):
            return Session(task, directory, runner, show).run(), None
    except (ZbenchError, KeyboardInterrupt) as error:
        if fresh and directory.discard_if_empty():
            raise
        return None, error


def _code(
    found: Outcome | None, failure: ZbenchError | KeyboardInterrupt | None, records: Sequence[Record]
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


def _check(sweep: SweepSpec) -> None:
    """Raise UsageError for a sweep that cannot be searched here."""
    if sweep.verify.mode == "off":
        raise UsageError("a best needs a verdict: set verify.mode to reference or full to search this sweep")
    sizes = sweep.axes.get("world_size")
    check_world_size(max([sweep.run.world_size, *(sizes if isinstance(sizes, list) else [])]))


def _try_storage(url: str) -> None:
    """Reach the storage once before anything is made on disk."""
    relational_storage(url).engine.dispose()


def _environment(request: Request) -> dict[str, Any]:
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


def _goal(text: str) -> tuple[str, str]:
    way, sign, metric = text.partition(":")
    if not sign or way not in ("maximize", "minimize"):
        name = text if text in METRICS else "METRIC"
        raise UsageError(
            f"--objective {text!r} has no direction: expected maximize:{name} or minimize:{name}"
        )
    return way, metric


def _size(text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None
    if size <= 0:
        raise UsageError(f"--memory: expected a size above 0 such as 2Gi, got {text!r}")
    return size


def _method_in(data: dict[str, Any]) -> str:
    """Return the search method that a file names, TPE where it names none or the whole grid."""
    search = data.get("search")
    method = search.get("method") if isinstance(search, dict) else None
    return method if isinstance(method, str) and method != "grid" else "tpe"
