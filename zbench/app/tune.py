"""Searches the axes of a sweep, alone or as a worker of a shared study."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.app.request import Request
from zbench.app.runs import Interruption, carried_out, facts, failure_code, is_incorrect
from zbench.app.voice import Voice
from zbench.errors import ExitCode, UsageError
from zbench.launch.events import OnEvent
from zbench.launch.executor import targets_for
from zbench.launch.executors import Backend, make_executor, require_room
from zbench.record.documents import replace_durably, sealed
from zbench.record.record import Record
from zbench.record.store import SEARCH, RunDirectory, storage_errors
from zbench.spec.trial import TrialSpec

if TYPE_CHECKING:
    from zbench.tune.findings import SearchOutcome


@dataclass(frozen=True, slots=True)
class Study:
    """A study that several processes share. storage: a database's URL, None for a file in the run directory.

    name: None for the sweep's. is_worker: this process runs trials of it and decides nothing.
    """

    storage: str | None = None
    name: str | None = None
    is_worker: bool = False


@dataclass(frozen=True, slots=True)
class SearchedRun:
    """A search that has ended, with what was found, or was cut short by `failure`."""

    path: Path
    records: Sequence[Record]
    outcome: "SearchOutcome | None"
    failure: Interruption | None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a search, which fails if no configuration was feasible and correct."""
        if self.failure is not None or self.outcome is None:
            return failure_code(self.failure or KeyboardInterrupt())
        if is_incorrect(self.records):
            return ExitCode.CORRECTNESS
        return ExitCode.PASS if self.outcome.final.best is not None else ExitCode.TRIALS_FAILED


def search_document(request: Request, searched: SearchedRun) -> dict[str, Any] | None:
    """Return what `search.json` holds of a search that has ended, and write it; None for one cut short."""
    from zbench.tune.findings import search_document as document_of

    if searched.outcome is None:
        return None
    document = document_of(searched.outcome, request.sweep.objective, searched.records)
    with storage_errors():
        replace_durably(searched.path / SEARCH, sealed({"schema_version": 1, **document}, indent=2))
    return document


def to_join(storage: str, study: str, base_dir: Path, output_dir: Path) -> Request:
    """Return the request to run trials of a study; UsageError where there is no such study."""
    from zbench.tune.ledger import load_sweep
    from zbench.tune.storage import reaching, relational_storage, require_existing

    require_existing(storage)
    opened = relational_storage(storage)
    with reaching(storage):
        sweep = load_sweep(opened, study)
    opened.engine.dispose()
    return Request(sweep.placed(base_dir), base_dir, output_dir)


def search(request: Request, voice: Voice, study: Study, backend: Backend = None) -> SearchedRun:
    """Search, or run trials of the study until none is left."""
    from zbench.tune.session import SearchTask, Session
    from zbench.tune.storage import redacted_arguments, relational_storage

    sweep = request.sweep
    if sweep.verify.mode == "off":
        raise UsageError("a search needs verdicts, but verify.mode is off; set it to reference or full")
    sizes = sweep.axes.get("world_size")
    world_sizes = sizes if isinstance(sizes, list) else [sweep.run.world_size]
    base = TrialSpec(workload=sweep.workload, run=sweep.run, engine=sweep.engine, verify=sweep.verify)
    runs = [sweep.run.model_copy(update={"world_size": size}) for size in world_sizes]
    require_room([base.model_copy(update={"run": run}) for run in runs], request.base_dir, backend)
    if study.storage is not None:
        relational_storage(study.storage).engine.dispose()  # reached once before anything is made on disk
    about = facts(request, redacted_arguments(sys.argv[1:]))
    task = SearchTask(sweep, request.base_dir, about, study.storage, study.name, is_worker=study.is_worker)

    def work(directory: RunDirectory, tell: OnEvent) -> "SearchOutcome":
        targets = targets_for([base])
        place = directory.path
        with closing(
            make_executor(place, request.base_dir, backend, targets=targets, on_event=tell)
        ) as executor:
            return Session(task, directory, executor, tell).run()

    directory, outcome, failure = carried_out(
        request, about, work, measured_here=backend is None, voice=voice
    )
    return SearchedRun(directory.path, directory.records(), outcome, failure)
