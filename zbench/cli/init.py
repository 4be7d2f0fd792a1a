"""`zbench init`: a first sweep file from what the user has."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.cli import console
from zbench.cli.options import common_flags

_FORMS = "ds_config.json, accelerate.yaml, training_args.json, hf:NAME_OR_CONFIG or my_module:make_model"

NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="The sweep file to write; never overwritten.")]


@common_flags()
def command(
    file: NewFile = Path("sweep.yaml"),
    source: Annotated[
        str | None, typer.Option("--from", metavar="SOURCE", help=f"Begin with {_FORMS}.")
    ] = None,
) -> None:
    """Write a commented sweep file that runs as it is; what does not map is named on stderr."""
    from zbench.cli.output import write_new
    from zbench.spec.starting import commented, starting_sweep

    started = starting_sweep(source, file.absolute().parent)
    for note in started.notes:
        console.warn(note)
    write_new(file, commented(started.document, source))
    if console.state.json:
        document = {"schema_version": 1, "file": str(file), "sweep": started.document, "notes": started.notes}
        console.document({**document, "exit_code": 0})
    else:
        console.result(f"wrote {file}: `zbench plan {file}` lists its trials, `zbench sweep {file}` runs it")
