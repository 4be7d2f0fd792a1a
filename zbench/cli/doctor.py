"""`zbench doctor`: what this machine can run, and what stands in the way."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zbench.cli import console
from zbench.cli.options import DEFAULT_OUTPUT_DIR, OutputDir, Seed, common_flags
from zbench.errors import ExitCode

if TYPE_CHECKING:
    from zbench.launch.doctor import Check

_NAME_WIDTH = 22
_MARKS = {
    "ok": ("ok", "green"),
    "info": ("-", "dim"),
    "warn": ("warn", "yellow"),
    "fail": ("FAIL", "bold red"),
}


@common_flags()
def command(
    aa: Annotated[
        bool, typer.Option("--aa", help="Compare this version with itself instead: noise, margin to use.")
    ] = False,
    sweep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --aa: the sweep. [default: three small trials]")
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="MIN:MAX", help="With --aa: blocks of four sweeps. [default: 12:24]")
    ] = None,
    engine_python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Say also which engines run in this Python environment. Repeatable.",
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine's rates instead: `machine:` of a sweep.")
    ] = False,
    world_size: Annotated[
        int, typer.Option(min=1, help="With --calibrate: the ranks that share the machine.")
    ] = 2,
    seed: Seed = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Say what this machine can run: versions, CPU, kernels, engines, memory bandwidth, and a two-rank trial.

    Ends with 6 if trials cannot run here, and 0 otherwise.
    """
    from zbench.launch.doctor import examine

    if aa:
        from zbench.cli.doctor_aa import report_noise

        raise typer.Exit(report_noise(sweep, blocks, seed))
    if calibrate:
        from zbench.cli.doctor_calibrate import report_rates

        raise typer.Exit(report_rates(world_size))
    checks = []
    for check in examine(output_dir, engine_python or ()):
        checks.append(check)
        if not console.state.json:
            _print(check)
    code = ExitCode.TRIALS_FAILED if any(check.status == "fail" for check in checks) else ExitCode.PASS
    if console.state.json:
        rows = [check.to_json() for check in checks]
        console.document({"schema_version": 1, "checks": rows, "exit_code": int(code)})
    raise typer.Exit(code)


def _print(check: "Check") -> None:
    from rich.table import Table
    from rich.text import Text

    out = console.rich_console()
    mark, style = _MARKS[check.status]
    if not out.is_terminal:
        console.result(f"{mark:4}  {check.name:{_NAME_WIDTH}}  {check.text}")
        return
    row = Table.grid(padding=(0, 2, 0, 0))
    for width in (4, _NAME_WIDTH, None):
        row.add_column(width=width)
    row.add_row(Text(mark, style), check.name, Text(check.text))
    out.print(row)
