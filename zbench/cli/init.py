"""`zbench init`: a first sweep file, from a configuration or model of the user."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zbench.cli import console
from zbench.errors import UsageError
from zbench.estimate.client import Simulator
from zbench.estimate.result import NotSimulated
from zbench.spec import shapes
from zbench.spec.expand import expand
from zbench.spec.foreign.reading import Note
from zbench.spec.foreign.recognition import FORMS
from zbench.spec.load import sweep_file, sweep_from_mapping
from zbench.spec.starting import commented, starting_sweep
from zbench.spec.workload import MODULE_CALLABLE


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new sweep file.")] = Path("sweep.yaml"),
    source: Annotated[
        str | None, typer.Option("--from", metavar="SOURCE", help=f"Start from {FORMS}.")
    ] = None,
) -> None:
    """Write a commented sweep file that runs as it is. Keys without an equivalent are named on stderr."""
    base_dir = file.absolute().parent
    started = starting_sweep(source, base_dir, re.sub(r"[^A-Za-z0-9_.-]+|^[.-]+", "_", file.stem)[:60])
    problem = _problem_of_own_model(started.document, base_dir)
    if problem:
        started.note("training", f"does not run yet: {problem}")
    console.write_new(file, commented(started.document, source, _schema()))
    if console.state.json:
        notes = [{"changes": note.effect, "note": note.text} for note in started.notes]
        console.document({"file": str(file), "sweep": started.document, "notes": notes})
    else:
        _show(started.notes)
        runs = "correct `workload:` there, then" if problem else f"`zbench plan {file}` lists its trials,"
        console.result(f"wrote {file}: {runs} `zbench sweep {file}` runs it")


def _show(notes: Sequence[Note]) -> None:
    """Print the notes: what changes the training, what memory or speed, and one line for the rest."""
    for effect, heading in (("training", "changes the training"), ("speed", "changes memory or speed")):
        texts = dict.fromkeys(note.text for note in notes if note.effect == effect)
        if texts:
            console.warn("\n  ".join([f"{heading}:", *texts]))
    rest = dict.fromkeys(note.text for note in notes if note.effect == "rest")
    if rest:
        console.note(f"left out, as it changes neither: {', '.join(rest)}")


def _schema() -> str | None:
    """Return the path of the JSON Schema that is installed beside the shipped sweeps."""
    schema = sweep_file(Path("quickstart")).parent / "schema.json"
    return str(schema.resolve()) if schema.is_file() else None


def _problem_of_own_model(document: Mapping[str, Any], base_dir: Path) -> str | None:
    """Simulate a step of the user's own model; return why it does not train as it is, or None.

    UsageError if the model cannot be loaded.
    """
    model = str(document["workload"].get("model"))
    if model.startswith(shapes.PREFIX) or not MODULE_CALLABLE.fullmatch(model):
        return None
    trials = expand(sweep_from_mapping(document, environ={})).trials
    with Simulator(base_dir, jobs=1) as simulator:
        outcome = simulator.of(trials[0])
    if isinstance(outcome, NotSimulated) and outcome.reason.startswith("workload.model: cannot load"):
        raise UsageError(f"--from {outcome.reason.removeprefix('workload.model: ')}")
    return outcome.reason if isinstance(outcome, NotSimulated) else None
