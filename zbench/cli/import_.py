"""`zbench import`: a sweep file from a DeepSpeed JSON configuration."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.cli import console
from zbench.cli.options import OutputFile, common_flags

DeepSpeedFile = Annotated[Path, typer.Argument(metavar="FILE", help="DeepSpeed's JSON configuration.")]


@common_flags()
def command(
    file: DeepSpeedFile,
    output: OutputFile = None,
) -> None:
    """Make a sweep file from a DeepSpeed JSON configuration; keys that do not map are named on stderr."""
    from zbench.cli.output import write_new
    from zbench.spec.deepspeed import from_deepspeed
    from zbench.spec.document import dump_yaml, read_document
    from zbench.spec.load import sweep_from_mapping
    from zbench.spec.sweep import sweep_document

    translated = from_deepspeed(read_document(file).data)
    document = sweep_document(
        sweep_from_mapping(translated.document, environ={}, source=str(file)), defaults=False
    )
    for note in translated.notes:
        console.warn(note)
    text = dump_yaml(document)
    if output is not None:
        write_new(output, text)
    if console.state.json:
        console.document({"schema_version": 1, "sweep": document, "notes": translated.notes, "exit_code": 0})
    elif output is None:
        console.result(text.rstrip("\n"))
