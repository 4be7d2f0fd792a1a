"""`zbench tag`: give a run a name that every command accepts."""

from typing import Annotated

import typer

from zbench.cli import console, options
from zbench.errors import UsageError
from zbench.record.store import resolve_run
from zbench.record.tags import load_tags, save_tag


def command(
    run: Annotated[str | None, options.run_argument("RUN", "A run's path, id, `last`, or `last~1`.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The run's new name.")] = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Give a run a name that every command accepts; without arguments, list the names."""
    if (run is None) != (name is None):
        raise UsageError("expected RUN and NAME, as `zbench tag last before`, or nothing to list the tags")
    if run is not None and name is not None:
        path = resolve_run(run, output_dir)
        save_tag(output_dir, name, f"{path.parent.name}/{path.name}")
        console.note(f"{name}: {path}")
    tags = load_tags(output_dir)
    if console.state.json:
        console.document({"tags": tags})
    elif run is None:
        if not tags:
            console.note("no tags yet; `zbench tag last NAME` names the newest run")
        for tag, place in tags.items():
            console.result(f"{tag}  {place}")
