"""What `sweep`, `run`, `tune` and `worker` share: request, run directory, document, last messages."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from zbench.analysis.ranking import rank_run
from zbench.cli import console
from zbench.errors import ExitCode, OutOfTimeError, UsageError, ZbenchError
from zbench.launch.events import OnEvent
from zbench.record import environment, lines
from zbench.record.record import Record
from zbench.record.secrets import masked_record
from zbench.record.store import RunDirectory, load_environment, storage_errors
from zbench.record.summary import has_failed, summarize
from zbench.report.detail import print_configuration
from zbench.report.live import view
from zbench.report.table import print_results, print_search
from zbench.report.text import plural
from zbench.report.trackers import following, tracker_factory
from zbench.spec.expand import Expansion
from zbench.spec.run import shared_gpus, visible_gpus
from zbench.spec.sweep import SweepSpec, sweep_document

Interruption = ZbenchError | KeyboardInterrupt
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """A sweep to run, the directory that its relative paths start from, and the directory of results.

    run: the run directory to continue, None for a new one. source: the sweep file, if there is one.
    settings: the `--set` texts of the run. single: run only the base configuration, without axes.
    added: the `--set` texts that a continued run was not started with.
    trackers: names of the experiment trackers to log each repeat to.
    """

    sweep: SweepSpec
    base_dir: Path
    output_dir: Path
    run: Path | None = None
    source: Path | None = None
    settings: tuple[str, ...] = ()
    single: bool = False
    added: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A run that has ended, or was cut short by `failure`; `command` is the one that continues it."""

    request: Request
    path: Path
    records: Sequence[Record]
    code: ExitCode
    failure: Interruption | None
    command: str

    def show(self, *, detailed: bool = False, **search: Any) -> ExitCode:
        """Print the run's table (each configuration in full if `detailed`) or document; return its exit code.

        search: the document of a search, if the run is one, under that name.
        """
        summaries, objective = summarize(self.records), self.request.sweep.objective
        ranking, screen = rank_run(self.path, summaries, objective), console.rich_console()
        if console.state.json:
            console.document(self.document(**ranking.document(), **search), self.code)
        elif detailed:
            for summary in summaries:
                print_configuration(screen, summary, self.path)
        elif self.records:
            print_results(screen, self.records, objective, self.path, ranking)
            if search.get("search") is not None:
                print_search(screen, search["search"], self.records)
        self._say(is_export_next=ranking.recommended is not None)
        return self.code

    def document(self, best: str | None, **more: Any) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        document: dict[str, Any] = {
            "run_id": self.path.name,
            "run_dir": str(self.path),
            "trials": [lines.jsonable(masked_record(record)) for record in self.records],
            "best": best,
            **more,
        }
        if self.failure is not None:
            document["error"] = {"kind": type(self.failure).__name__, "message": self._reason}
        return document

    def _say(self, *, is_export_next: bool) -> None:
        """Print on stderr where the results are and the next command: after an interruption, to continue."""
        if isinstance(self.failure, OutOfTimeError):
            console.warn(f"{self._reason}; continue with")
            console.note(f"  {self._resume}")
        elif self.failure is not None:
            console.error(f"{self._reason}; {plural(len(self.records), 'record')} kept, continue with")
            console.note(f"  {self._resume}")
        elif not console.state.json:
            console.note(f"results in {self.path}; next, for instance:")
            console.note(f"  zbench report {shlex.quote(str(self.path))} --html report.html")
            if is_export_next:
                console.note(f"  zbench export {shlex.quote(str(self.path))} --trial best")

    @property
    def _reason(self) -> str:
        return str(self.failure) or "interrupted"

    @property
    def _resume(self) -> str:
        source = [os.path.relpath(self.request.source)] if self.request.source else []
        added = [word for setting in self.request.added for word in ("--set", setting)]
        return shlex.join(["zbench", self.command, *source, "--resume", str(self.path), *added])


def tracked(request: Request, trackers: Sequence[str]) -> Request:
    """Return the request with these trackers; UsageError, before anything runs, if one is not installed."""
    for name in trackers:
        tracker_factory(name)
    return replace(request, trackers=tuple(trackers))


def facts(request: Request, command: Sequence[str]) -> dict[str, Any]:
    """Return the contents of `environment.json` for a run that begins now; `command`: the command line."""
    return environment.collect(
        command=list(command),
        sweep_file=str(request.source) if request.source else None,
        base_dir=str(request.base_dir),
        settings=list(request.settings),
        single=request.single,
    )


def open_directory(request: Request, about: dict[str, Any], *, measured_here: bool) -> RunDirectory:
    """Return the run directory to write to: the one to continue, or a new one. about: see `facts`.

    UsageError if the run is of another machine (unless its trials run elsewhere) or of other software:
    its repeats could not be compared.
    """
    if request.run is not None:
        before = load_environment(request.run)
        sections = ("machine", "software") if measured_here else ("software",)
        if changed := environment.differences(before, about, *sections):
            raise UsageError(
                f"{request.run.name} was measured with another machine or software: {'; '.join(changed)};"
                " continue it where it was started, or start a new run without --resume and compare the two"
            )
        if code := environment.differences(before, about, "git"):
            console.warn(f"earlier repeats of {request.run.name} may have run other code: {'; '.join(code)}")
        directory = RunDirectory.open(request.run)
        for place in directory.damaged:
            console.warn(f"{place}: damaged record, ignored; its repeat is measured again")
        return directory
    return RunDirectory.create(
        request.output_dir, request.sweep.name, spec=sweep_document(request.sweep), environment=about
    )


def carried_out(
    request: Request,
    about: dict[str, Any],
    work: Callable[[RunDirectory, OnEvent], T],
    *,
    measured_here: bool,
) -> tuple[RunDirectory, T | None, Interruption | None]:
    """Do the work in the request's run directory; return the directory, the outcome, and what interrupted it.

    Events are shown to the user, and finished repeats are logged to the request's trackers. A new directory
    in which no repeat has finished is removed. about, measured_here: see `open_directory`.
    """
    sweep, stderr = request.sweep, console.rich_console(stderr=True)
    directory = open_directory(request, about, measured_here=measured_here)
    try:
        with (
            directory,
            storage_errors(),
            view(stderr, sweep.objective, quiet=console.state.quiet) as show,
            following(request.trackers, directory.path, sweep.name, show) as tell,
        ):
            return directory, work(directory, tell), None
    except (ZbenchError, KeyboardInterrupt) as error:
        if request.run is None and directory.discard_if_empty():
            nothing = f"{str(error) or 'interrupted'} before a repeat ended: nothing was kept; run it again"
            raise (error if isinstance(error, ZbenchError) else KeyboardInterrupt(nothing)) from None
        return directory, None, error


def failure_code(failure: Interruption) -> ExitCode:
    """Return the exit code of an interruption."""
    return failure.exit_code if isinstance(failure, ZbenchError) else ExitCode.INTERRUPTED


def is_incorrect(records: Sequence[Record]) -> bool:
    """Whether some repeat computed another training step than plain PyTorch."""
    return any(record.correctness.verdict in ("drifted", "wrong") for record in records)


def exit_code(records: Sequence[Record]) -> ExitCode:
    """Return the exit code for these records: of incorrect results before that of failed trials.

    Last comes that of trials that finished, but could not be fully verified.
    """
    if is_incorrect(records):
        return ExitCode.CORRECTNESS
    if any(map(has_failed, records)):
        return ExitCode.TRIALS_FAILED
    if any(summary.is_unjudged for summary in summarize(records)):
        return ExitCode.INCONCLUSIVE
    return ExitCode.PASS


def warn_before(sweep: SweepSpec, expansion: Expansion) -> None:
    """Warn of `exclude` entries that match no point (often a misspelt value), and of shared GPUs."""
    for index in expansion.unused:
        console.warn(f"exclude.{index} matches no point of the sweep: {sweep.exclude[index]}")
    gpus, run = visible_gpus(), sweep.run
    if gpus and run.device != "cpu" and run.nodes == 1 and run.world_size > gpus:
        console.warn(shared_gpus(run.world_size, gpus))
