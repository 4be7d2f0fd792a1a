"""`tune`, `worker` and `sweep` with a search method: from a request to table and exit code."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.analysis.ranking import Ranking, rank
from zbench.cli import console
from zbench.cli.conclusion import (
    Conclusion,
    Interruption,
    Request,
    facts,
    failure_code,
    is_incorrect,
    open_directory,
    shown_and_tracked,
)
from zbench.errors import ExitCode, UsageError, ZbenchError
from zbench.launch.executor import targets_for
from zbench.launch.executors import make_executor, require_room
from zbench.launch.trial import TrialRunner
from zbench.record.record import Record
from zbench.record.store import RunDirectory, storage_errors
from zbench.record.summary import summarize
from zbench.report.search import print_search
from zbench.report.table import print_results
from zbench.report.text import plural
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec

if TYPE_CHECKING:  # Optuna is imported where a search begins, not with the command line
    from zbench.launch.slurm_jobs import SlurmOptions
    from zbench.tune.findings import SearchOutcome
    from zbench.tune.session import SearchTask


def perform_search(
    request: Request,
    *,
    storage: str | None = None,
    study: str | None = None,
    slurm: "SlurmOptions | None" = None,
) -> ExitCode:
    """Search, print the table and what was found (or the document), and return the exit code."""
    from zbench.tune.findings import search_document
    from zbench.tune.session import SearchTask

    _check(request.sweep, slurm)
    about = _facts(request)
    if storage is not None:
        _try_storage(storage)
    directory = open_directory(request, about, measured_here=slurm is None)
    task = SearchTask(request.sweep, request.base_dir, about, storage, study)
    found, failure = _run(task, request, directory, slurm)
    records = directory.records()
    code = _code(found, failure, records)
    document = None if found is None else search_document(found, request.sweep.objective, records)
    if document is not None:
        (directory.path / "search.json").write_text(json.dumps(document, indent=2) + "\n")
    ranking = rank(summarize(records), request.sweep.objective)
    _print(Conclusion(request, directory.path, records, code, failure, "tune"), ranking, document)
    return code


def work(
    storage: str, study: str, base_dir: Path, output_dir: Path, slurm: "SlurmOptions | None" = None
) -> ExitCode:
    """Pull trials of a study until there are none left; return the exit code."""
    from zbench.tune.ledger import load_sweep
    from zbench.tune.session import SearchTask
    from zbench.tune.storage import reaching, relational_storage, require_existing

    require_existing(storage)
    opened = relational_storage(storage)
    with reaching(storage):
        sweep = load_sweep(opened, study)
    opened.engine.dispose()
    request = Request(sweep.placed(base_dir), base_dir, output_dir)
    _check(sweep, slurm)
    about = _facts(request)
    directory = open_directory(request, about, measured_here=slurm is None)
    task = SearchTask(request.sweep, base_dir, about, storage, study, is_worker=True)
    found, failure = _run(task, request, directory, slurm)
    records = directory.records()
    code = failure_code(failure) if failure is not None else ExitCode.PASS
    if console.state.json:
        conclusion = Conclusion(request, directory.path, records, code, failure, "worker")
        console.document(conclusion.document(None, search=None, study=study))
    if failure is not None:
        console.error(str(failure) or "interrupted")
    elif found is not None:
        count = plural(len(records), "record")
        console.note(f"{found.stopped}; {count} of study {study} in {directory.path}")
    return code


def _run(
    task: "SearchTask", request: Request, directory: RunDirectory, slurm: "SlurmOptions | None"
) -> tuple["SearchOutcome | None", Interruption | None]:
    """Return what was found, or what cut it short; a fresh directory without a record does not stay."""
    from zbench.tune.session import Session

    sweep = task.sweep
    base = TrialSpec(workload=sweep.workload, run=sweep.run, engine=sweep.engine, verify=sweep.verify)
    targets = targets_for([base])
    try:
        with (
            directory,
            storage_errors(),
            shown_and_tracked(request, directory) as tell,
            TrialRunner(
                make_executor(directory.path, task.base_dir, slurm, targets=targets), directory.path
            ) as runner,
        ):
            return Session(task, directory, runner, tell).run(), None
    except (ZbenchError, KeyboardInterrupt) as error:
        if request.run is None and directory.discard_if_empty():
            raise error from None
        return None, error


def _code(found: "SearchOutcome | None", failure: Interruption | None, records: Sequence[Record]) -> ExitCode:
    """Return what a search means: without a feasible and correct configuration it has not done its job."""
    if failure is not None or found is None:
        return failure_code(failure or KeyboardInterrupt())
    if is_incorrect(records):
        return ExitCode.CORRECTNESS
    return ExitCode.PASS if found.final.best is not None else ExitCode.TRIALS_FAILED


def _print(conclusion: Conclusion, ranking: Ranking, found: dict[str, Any] | None) -> None:
    """Print the results of a search, also of one that was cut short."""
    records, objective = list(conclusion.records), conclusion.request.sweep.objective
    if console.state.json:
        console.document(conclusion.document(**ranking.document(), search=found))
    elif records:
        print_results(console.rich_console(), records, objective, conclusion.path, ranking)
        if found is not None:
            print_search(console.rich_console(), found, records)
    conclusion.say()


def _check(sweep: SweepSpec, slurm: "SlurmOptions | None") -> None:
    """Raise UsageError for a sweep that cannot be searched, or whose ranks cannot run."""
    if sweep.verify.mode == "off":
        raise UsageError("a best needs a verdict: set verify.mode to reference or full to search this sweep")
    sizes = sweep.axes.get("world_size")
    known = sizes if isinstance(sizes, list) else [sweep.run.world_size]
    require_room([sweep.run.model_copy(update={"world_size": size}) for size in known], slurm)


def _try_storage(url: str) -> None:
    """Reach the storage once before anything is made on disk."""
    from zbench.tune.storage import relational_storage

    relational_storage(url).engine.dispose()


def _facts(request: Request) -> dict[str, Any]:
    from zbench.tune.storage import redacted_arguments

    return facts(request, redacted_arguments(sys.argv[1:]))
