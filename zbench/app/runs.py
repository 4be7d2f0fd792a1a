"""A run from its directory to its exit code: opened or continued, shown while it goes on, and judged."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from zbench.analysis.ranking import Ranking
from zbench.app.request import Request
from zbench.app.voice import Voice
from zbench.errors import ExitCode, OutOfTimeError, UsageError, ZbenchError
from zbench.launch.events import OnEvent
from zbench.record import environment
from zbench.record.record import Record
from zbench.record.store import RunDirectory, load_environment, storage_errors
from zbench.record.summary import has_failed, summarize
from zbench.report.live import view
from zbench.report.text import plural
from zbench.report.trackers import following
from zbench.spec.sweep import sweep_document

Interruption = ZbenchError | KeyboardInterrupt
T = TypeVar("T")


def facts(request: Request, command: Sequence[str]) -> dict[str, Any]:
    """Return the contents of `environment.json` for a run that begins now; `command`: the command line."""
    return environment.collect(
        command=list(command),
        sweep_file=str(request.source) if request.source else None,
        base_dir=str(request.base_dir),
        settings=list(request.settings),
        single=request.single,
    )


def open_directory(
    request: Request, about: dict[str, Any], *, measured_here: bool, voice: Voice
) -> RunDirectory:
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
            voice.warn(f"earlier repeats of {request.run.name} may have run other code: {'; '.join(code)}")
        directory = RunDirectory.open(request.run)
        for place in directory.damaged:
            voice.warn(f"{place}: damaged record, ignored; its repeat is measured again")
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
    voice: Voice,
) -> tuple[RunDirectory, T | None, Interruption | None]:
    """Do the work in the request's run directory; return the directory, the outcome, and what interrupted it.

    Events are shown to the user, and finished repeats are logged to the request's trackers. A new directory
    in which no repeat has finished is removed. about, measured_here: see `open_directory`.
    """
    sweep = request.sweep
    directory = open_directory(request, about, measured_here=measured_here, voice=voice)
    try:
        with (
            directory,
            storage_errors(),
            view(voice.screen(), sweep.objective, quiet=voice.quiet) as show,
            following(request.trackers, directory.path, sweep.name, show) as tell,
        ):
            return directory, work(directory, tell), None
    except (ZbenchError, KeyboardInterrupt) as error:
        if request.run is None and directory.discard_if_empty():
            if not isinstance(error, KeyboardInterrupt | OutOfTimeError):
                raise
            reason = str(error) or "interrupted"
            raise type(error)(f"{reason}; no repeat had ended, so nothing was kept; run it again") from None
        return directory, None, error


def best_of(run: Path, ranking: Ranking, voice: Voice) -> str:
    """Return the id of a run's best trial; if several are tied, that of the recommended one, and say so."""
    if ranking.pending:
        pending = plural(ranking.pending, "configuration")
        raise UsageError(f"{run} has no best trial yet: {pending} left to run; name a trial with --trial ID")
    if ranking.recommended is None:
        raise UsageError(
            f"{run} has no best trial: none is correct and within the constraints; name one with --trial ID"
        )
    if ranking.best is None:
        voice.note(f"{ranking.recommended}: recommended, {ranking.why}, {ranking.tied}")
    return ranking.recommended


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
