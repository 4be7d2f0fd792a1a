"""`zbench export`: one configuration of a sweep or a run, in the form of another training stack."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from zbench.analysis.ranking import rank_run
from zbench.analysis.relative import compared
from zbench.app.runs import best_of
from zbench.cli import console, options
from zbench.errors import UsageError
from zbench.record.record import Record
from zbench.record.store import load_records, resolve_run
from zbench.record.summary import ConfigSummary, has_failed, is_incorrect, summarize
from zbench.report.exports.csv import render_relative
from zbench.report.text import axes_text, failure_message
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep, recorded_objective
from zbench.spec.targets import TARGETS, measured_by
from zbench.spec.trial import TrialSpec

_MOST_LISTED = 20


def command(
    source: Annotated[
        str, options.run_argument("SWEEP_OR_RUN", "A sweep file, or a run: its path, its id, or `last`.")
    ],
    trial: options.Trial = None,
    to: Annotated[
        Literal["deepspeed", "accelerate", "fsdp2", "hf-trainer", "csv"],
        typer.Option(
            "--to",
            help="deepspeed, hf-trainer write JSON, accelerate YAML, fsdp2 Python; csv needs --relative-to.",
        ),
    ] = "deepspeed",
    relative_to: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="With --to csv: the table of `zbench show --relative-to`."),
    ] = [],  # noqa: B006 - Typer reads the default, nobody changes it
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to this new file, not to stdout."),
    ] = None,
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Write a trial's configuration for DeepSpeed, accelerate, FSDP2 or the transformers Trainer.

    Keys without an equivalent are named on stderr. The target computes the
    keys that depend on the number of ranks.
    """
    if relative_to or to == "csv":
        relative = compared(summarize(load_records(resolve_run(source, output_dir))), relative_to)
        if trial is not None or relative is None or to != "csv":
            raise UsageError(
                "--to csv and --relative-to KEY=VALUE need each other and exclude --trial; give both, or none"
            )
        _write(render_relative(relative).rstrip("\n"), output)
        return
    if Path(source).is_file():
        candidates = expand(load_sweep(Path(source), overrides, inputs=False)).trials
    else:
        run = resolve_run(source, output_dir)
        records = load_records(run)
        candidates = _run_trials(run, records)
        if trial == "best":
            objective = recorded_objective(run / "spec.yaml")
            ranking = rank_run(run, summarize(records), objective, explains=False)
            trial = best_of(run, ranking, console.voice())
        for record in records:
            if trial and record.outcome == "invalid" and record.trial_id.startswith(trial):
                why = failure_message(record)
                raise UsageError(
                    f"trial {record.trial_id} cannot be exported, it is invalid: {why}; choose another"
                )
    chosen = _chosen(candidates, trial)
    exported = TARGETS[to](chosen)
    if not Path(source).is_file():
        console.note(f"trial {chosen.trial_id}: {measured_by(chosen, to)}")
        for summary in summarize(record for record in records if record.trial_id == chosen.trial_id):
            _warn_of_fault(summary)
    for note in exported.notes:
        console.warn(note)
    _write(exported.text, output)


def _warn_of_fault(summary: ConfigSummary) -> None:
    """Say that a configuration which the user named trains something else, or did not run to its end."""
    if is_incorrect(summary):
        fault, why = str(summary.verdict), summary.diagnosis
    elif has_failed(summary):
        fault, why = summary.outcome, failure_message(summary)
    else:
        return
    because = f" ({why})" if why else ""
    console.warn(f"trial {summary.trial_id} is {fault}{because} and is never recommended; choose another")


def _write(text: str, output: Path | None) -> None:
    """Print text, or write it to a file that does not exist yet."""
    if output is None:
        console.data(text)
    else:
        console.write_new(output, text + "\n")


def _run_trials(run: Path, records: Sequence[Record]) -> list[TrialSpec]:
    """Return each valid configuration of a run; UsageError if one cannot be read."""
    trials = {}
    for record in records:
        if record.outcome == "invalid" or record.trial_id in trials:
            continue
        try:
            trials[record.trial_id] = TrialSpec.model_validate({**record.config, "axes": record.axes})
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(str(part) for part in problem["loc"])
            raise UsageError(
                f"{run}: the configuration of trial {record.trial_id} cannot be read: {key}: "
                f"{problem['msg']}; run it again with this version of zbench"
            ) from None
    return list(trials.values())


def _chosen(candidates: Sequence[TrialSpec], prefix: str | None) -> TrialSpec:
    """Return the one trial whose id begins with `prefix`; UsageError with the choices if there is not one."""
    matches = [trial for trial in candidates if trial.trial_id.startswith(prefix or "")]
    if len(matches) == 1:
        return matches[0]
    lines = [f"{trial.trial_id}  {axes_text(trial.axes)}" for trial in (matches or candidates)[:_MOST_LISTED]]
    others = len(matches or candidates) - len(lines)
    lines += [f"and {others} more"] if others else []
    problem = f"no trial {prefix!r}" if not matches else f"{len(matches)} trials match"
    raise UsageError("\n  ".join([f"{problem}; choose one with --trial ID (or best, of a run):", *lines]))
