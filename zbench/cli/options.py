"""Flags with one meaning in every command, as Typer types.

Write a default in words: Rich reads `[default: ...]` in a help text as markup, and prints nothing of it.
"""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from zbench.app import DEFAULT_OUTPUT_DIR as DEFAULT_OUTPUT_DIR
from zbench.cli import console
from zbench.errors import UsageError
from zbench.spec import LISTED
from zbench.units import parse_bytes, parse_duration

_FILE = typer.Argument(metavar="FILE", help=f"Sweep file (YAML, TOML, JSON), or {LISTED}.")
SweepFile = Annotated[Path, _FILE]
OptionalSweepFile = Annotated[Path | None, _FILE]
Resume = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Continue a run: its path, its id, or `last`. FILE is optional then."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the trials and run nothing.")]
OutputDir = Annotated[
    Path,
    typer.Option(
        "-o", "--output-dir", metavar="DIR", envvar="ZBENCH_OUTPUT_DIR", help="Directory of results."
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="ZBENCH_SCRATCH",
        help="Folder on a disk for the model's state before a replayed step. Default: of temporary files.",
    ),
]
Cores = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Run the command and its ranks on these cores alone, such as 0-3,6; doctor names free ones.",
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a sweep file's key, such as engine.zero_stage=1; repeatable."
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Deadline of one trial, such as 120s or 5min."),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Seed for the model, the data and the order of trials."),
]
Log = Annotated[
    list[str],
    typer.Option(
        metavar="TRACKER",
        help="Log each repeat to mlflow, wandb, tensorboard (each needs its extra) or a plug-in; repeatable.",
    ),
]
Repeats = Annotated[int | None, typer.Option(min=1, help="How many times to measure each configuration.")]
Separate = Annotated[
    str | None,
    typer.Option(metavar="SHARE", help="Repeat until leaders differ, or are equal within this share: 5%."),
]
Slurm = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUE",
        help="Run each trial as a SLURM job with this setting, such as nodes=2; repeatable (extra: `slurm`).",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Run trials on a Ray cluster: at HOST:PORT, or the cluster of this machine (extra: `ray`).",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="ZBENCH_STORAGE",
        help="Database that all hosts can reach, such as postgresql://user@host/db; put the password in "
        "PGPASSWORD, ~/.pgpass or ZBENCH_STORAGE. Default: a file in the run directory.",
    ),
]
RelativeTo = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUE",
        help="Show each configuration relative to the one that differs only in having KEY=VALUE; repeatable;"
        " best:KEY=VALUE,VALUE takes the fastest of these values.",
    ),
]
By = Annotated[
    list[str],
    typer.Option(metavar="AXIS", help="With --relative-to: a table for each value of this axis; repeatable."),
]
Directory = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="Directory of results. Default: that of --output-dir.")
]
Branch = Annotated[str | None, typer.Option(metavar="REF", help="Read DIR from this git branch or commit.")]


def seconds(text: str | None, flag: str) -> float:
    """Return a flag's duration in seconds, infinity for None; UsageError for an invalid one."""
    if text is None:
        return math.inf
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
    if not duration > 0:
        raise UsageError(f"{flag}: expected a time above 0 such as 20min, got {text!r}")
    return duration


def run_settings(overrides: list[str], **flags: object) -> list[str]:
    """Return the settings of the command line: a flag that is not None sets a key of `run`."""
    from zbench.spec.load import command_line

    return command_line(overrides, [(f"run.{key}", f"--{key}", value) for key, value in flags.items()])


_LEAST_WITHOUT_UNIT = 1 << 20  # bytes; who writes a smaller number means gigabytes


def memory_size(flag: str, text: str) -> int:
    """Return a flag's size of device memory in bytes; UsageError for an invalid or implausible one."""
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}; write a size with its unit, such as 80Gi") from None
    if size <= 0:
        raise UsageError(f"{flag}: expected a size above 0, such as 80Gi, got {text!r}")
    if text.strip().isdigit() and size < _LEAST_WITHOUT_UNIT:
        raise UsageError(f"{flag}: expected a size with its unit, such as {text.strip()}Gi, got {text!r}")
    return size


def _flag(*words: str, help: str) -> Any:
    """Return a flag whose value is stored in `console.state`, under the last of its names."""
    name = words[-1].removeprefix("--").replace("-", "_")
    return typer.Option(
        *words, callback=lambda value: setattr(console.state, name, value), expose_value=False, help=help
    )


def common_flags(
    json: Annotated[bool, _flag("--json", help="Print one JSON document on stdout.")] = False,
    quiet: Annotated[bool, _flag("-q", "--quiet", help="Print warnings and results only.")] = False,
    verbose: Annotated[bool, _flag("-v", "--verbose", help="Print more detail, and tracebacks.")] = False,
    no_color: Annotated[bool, _flag("--no-color", help="Print without colour (also: NO_COLOR=1).")] = False,
) -> None:
    """The flags that every command has; `main.load_command` adds them."""


def complete_runs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of runs that begin with `incomplete`: `last`, tags, sweeps and ids, newest first."""
    from zbench.record.store import find_runs
    from zbench.record.tags import load_tags

    place = Path(context.params.get("output_dir") or DEFAULT_OUTPUT_DIR)
    runs = list(reversed(find_runs(place)))
    names = ["last", *load_tags(place), *(path.parent.name for path in runs), *(path.name for path in runs)]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def complete_trials(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of a run's trials that begin with `incomplete`: `best` and the ids."""
    from zbench.errors import ZbenchError
    from zbench.record.store import load_records, resolve_run

    typed = [word for word in context.args if not word.startswith("-")]  # a line that ends in --trial
    run = next(iter(typed), None) or context.params.get("run") or context.params.get("source") or "last"
    place = Path(context.params.get("output_dir") or DEFAULT_OUTPUT_DIR)
    try:
        records = load_records(resolve_run(str(run), place))
    except ZbenchError:
        return []
    names = ["best", *(record.trial_id for record in records)]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete) and name.isprintable()]


def run_argument(metavar: str, help: str) -> Any:
    """Return an argument that names a run, with shell completion."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete_runs)


Trial = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="One configuration: the first characters of its id, or `best`.",
        autocompletion=complete_trials,
    ),
]
