"""`zbench worker`: run trials of a shared study on this host."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.app.runs import failure_code
from zbench.app.tune import Study, search, to_join
from zbench.cli import console, options
from zbench.cli.conclusion import Conclusion
from zbench.errors import ExitCode, UsageError
from zbench.launch.executors import backend_of
from zbench.report.text import plural
from zbench.scratch import use_state_folder


def command(
    storage: options.Storage = None,
    study: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the study.")] = None,
    base_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the sweep's relative paths. Default: the current one."),
    ] = None,
    slurm: options.Slurm = [],  # noqa: B006 - Typer reads the default, nobody changes it
    ray: options.Ray = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
    scratch: options.Scratch = None,
) -> None:
    """Run trials of a search that `zbench tune FILE --storage URL` started, until none is left.

    Any number of workers on any number of hosts can share a search; none
    repeats another's trial. If a worker is lost, another one runs its trials.
    """
    use_state_folder(scratch, console.warn)
    if storage is None or study is None:
        raise UsageError(
            "expected --storage URL (or ZBENCH_STORAGE) and --study NAME; give those of `zbench tune`"
        )
    request = to_join(storage, study, base_dir or Path.cwd(), output_dir)
    backend = backend_of(slurm, ray, console.warn)
    done = search(request, console.voice(), Study(storage, study, is_worker=True), backend)
    code = failure_code(done.failure) if done.failure is not None else ExitCode.PASS
    if console.state.json:
        conclusion = Conclusion(request, done.path, done.records, code, done.failure, "worker")
        console.document(conclusion.document(None, search=None, study=study), code)
    if done.failure is not None:
        console.error(str(done.failure) or "interrupted")
    elif done.outcome is not None:
        records = plural(len(done.records), "record")
        console.note(f"{done.outcome.stopped}; {records} of {study} in {done.path}")
    raise typer.Exit(code)
