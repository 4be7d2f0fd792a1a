"""`zbench doctor`: what this machine can run, its noise (`--aa`) and its rates (`--calibrate`)."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from zbench.analysis.noise import NoiseReport
from zbench.app.compare import parse_blocks
from zbench.app.doctor import calibrate, noise
from zbench.cli import console, options
from zbench.errors import ExitCode
from zbench.launch.doctor import examine
from zbench.spec.document import dump_yaml

_NAME_WIDTH = 22
_MARKS = {
    "ok": ("ok", "green"),
    "info": ("-", "dim"),
    "warn": ("warn", "yellow"),
    "fail": ("FAIL", "bold red"),
}


def command(
    aa: Annotated[
        bool, typer.Option("--aa", help="Compare this version with itself, to measure this machine's noise.")
    ] = False,
    sweep: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --aa: sweep to run. Default: three small trials."),
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="MIN:MAX", help="With --aa: blocks of four sweeps. Default: 8:24.")
    ] = None,
    engine_python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Also check which engines run in this Python environment; repeatable.",
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure this machine's rates, for a sweep file's `machine:`."),
    ] = False,
    world_size: Annotated[
        int, typer.Option(min=1, help="With --calibrate: number of ranks that share the machine.")
    ] = 2,
    seed: options.Seed = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
) -> None:
    """Check what this machine can run: versions, CPU, kernels, engines, memory bandwidth, a two-rank trial.

    Exit code: 6 if trials cannot run here, 0 otherwise.
    """
    if aa:
        raise typer.Exit(_report_noise(sweep, blocks, seed))
    if calibrate:
        raise typer.Exit(_report_rates(world_size))
    checks = []
    for check in examine(output_dir, engine_python or ()):
        checks.append(check)
        if not console.state.json:
            mark, style = _MARKS[check.status]
            line = Text.assemble((f"{mark:4}", style), f"  {check.name:{_NAME_WIDTH}}  {check.text}")
            console.rich_console().print(line, soft_wrap=True)
    code = ExitCode.TRIALS_FAILED if any(check.status == "fail" for check in checks) else ExitCode.PASS
    if console.state.json:
        console.document({"checks": [check.to_json() for check in checks]}, code)
    raise typer.Exit(code)


def _report_noise(sweep: Path | None, blocks: str | None, seed: int | None) -> ExitCode:
    """Compare this version with itself and print the smallest slowdown that this machine can detect (a
    document with --json); return 1 if there was a false alarm.
    """
    comparison = noise(sweep, parse_blocks(blocks), seed, console.voice())
    code = ExitCode.REGRESSION if comparison.alarms else ExitCode.PASS
    if console.state.json:
        values = dataclasses.asdict(comparison)
        values |= {key: None for key, v in values.items() if isinstance(v, float) and not math.isfinite(v)}
        console.document({"aa": values}, code)
    else:
        console.result(_noise_text(comparison))
    return code


def _noise_text(noise: NoiseReport) -> str:
    size = f"{noise.comparisons} configurations, {noise.blocks} blocks"
    return "\n".join(
        [
            f"this version against itself: {size}, {noise.alarms} false alarms",
            f"noise of one block      {noise.noise:.1%} (the noisiest configuration)",
            f"drift, start to end     {noise.drift:+.1%}",
            f"threshold to use        --threshold step_time={noise.margin:.2%} with --paired",
            f"detectable slowdown     {noise.detectable:.1%} (nine times in ten, at that threshold)",
        ]
    )


def _report_rates(world_size: int) -> ExitCode:
    """Measure, and print the rates as YAML (a document with --json)."""
    machine = calibrate(world_size).model_dump(mode="json", exclude_defaults=True)
    rates = {key: _rounded(value) for key, value in machine.items()}
    if console.state.json:
        console.document({"world_size": world_size, "machine": rates})
    else:
        console.result(f"# one rank's rates while {world_size} ranks share this machine")
        console.result(dump_yaml({"machine": rates}).rstrip())
    return ExitCode.PASS


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
