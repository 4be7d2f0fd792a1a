"""`zbench export`: one configuration of a sweep or a run, as DeepSpeed JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zbench.cli import console
from zbench.cli.options import NoColor, OutputFile, Overrides, Quiet, Verbose
from zbench.errors import UsageError

if TYPE_CHECKING:
    from zbench.spec.trial import TrialSpec

Source = Annotated[Path, typer.Argument(metavar="SWEEP_OR_RUN", help="A sweep file or a run's directory.")]
TrialId = Annotated[
    str | None, typer.Option("--trial", metavar="ID", help="Which trial, as `plan` and `show` name it.")
]
DeepSpeed = Annotated[bool, typer.Option("--deepspeed", help="As DeepSpeed's JSON, the one format yet.")]


def command(
    source: Source,
    trial: TrialId = None,
    deepspeed: DeepSpeed = True,
    output: OutputFile = None,
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Write a trial's configuration as DeepSpeed JSON; keys that do not map are named on stderr."""
    from zbench.cli.output import write_new
    from zbench.spec.deepspeed import to_deepspeed

    candidates = _run_trials(source) if source.is_dir() else _sweep_trials(source, overrides)
    translated = to_deepspeed(_chosen(candidates, trial))
    for note in translated.notes:
        console.warn(note)
    text = json.dumps(translated.document, indent=2)
    if output is None:
        console.result(text)
    else:
        write_new(output, text + "\n")


def _sweep_trials(source: Path, overrides: list[str]) -> "list[TrialSpec]":
    from zbench.spec.expand import expand
    from zbench.spec.load import load_sweep

    return expand(load_sweep(source, overrides, inputs=False)).trials


def _run_trials(source: Path) -> "list[TrialSpec]":
    from zbench.record.store import load_records
    from zbench.spec.trial import TrialSpec

    found = {
        record.trial_id: TrialSpec.model_validate({**record.config, "axes": record.axes})
        for record in load_records(source)
        if record.outcome != "invalid"
    }
    return list(found.values())


def _chosen(candidates: "Sequence[TrialSpec]", wanted: str | None) -> "TrialSpec":
    """Return the one trial that is meant; UsageError with the choices otherwise."""
    matches = [trial for trial in candidates if trial.trial_id.startswith(wanted or "")]
    if len(matches) == 1:
        return matches[0]
    lines = [f"{trial.trial_id}  {json.dumps(trial.axes)}" for trial in matches or candidates]
    found = f"no trial {wanted!r}" if not matches else f"{len(matches)} trials match"
    raise UsageError("\n  ".join([f"{found}; choose one with --trial ID:", *lines[:20]]))
