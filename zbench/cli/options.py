"""The flags that mean the same in every command, as Typer types."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from zbench.cli import console


def _remember(flag: str) -> Callable[[bool], bool]:
    def callback(value: bool) -> bool:
        setattr(console.state, flag, value)
        return value

    return callback


SweepFile = Annotated[Path, typer.Argument(metavar="FILE", help="Sweep file: YAML, TOML or JSON.")]
OutputDir = Annotated[
    Path,
    typer.Option(
        "-o", "--output-dir", metavar="DIR", envvar="ZBENCH_OUTPUT_DIR", help="Where results are kept."
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set any key of the file, as engine.zero_stage=1; repeatable."
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Deadline of one trial, as 120s or 5min."),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Seed of the model, the data and the order of trials."),
]
Repeats = Annotated[int | None, typer.Option(min=1, help="How often each configuration is measured.")]
Json = Annotated[
    bool, typer.Option("--json", callback=_remember("json"), help="Print one JSON document on stdout.")
]
Quiet = Annotated[
    bool,
    typer.Option(
        "-q", "--quiet", callback=_remember("quiet"), help="No progress; warnings and results only."
    ),
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", callback=_remember("verbose"), help="Say more; show tracebacks.")
]
NoColor = Annotated[
    bool, typer.Option("--no-color", callback=_remember("no_color"), help="No colour (also: NO_COLOR=1).")
]
Slurm = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUE",
        help="Run each trial as a SLURM job, as nodes=2 or partition=gpu; repeatable (extra: `slurm`).",
    ),
]
DEFAULT_OUTPUT_DIR = Path("results")


def settings(overrides: list[str], **flags: object) -> list[str]:
    """Return the `--set` texts, then the flags that were given: each is a setting of a key of `run`."""
    return [*overrides, *(f"run.{key}={value}" for key, value in flags.items() if value is not None)]


OutputFile = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Write here instead of to stdout; never overwrites."),
]
