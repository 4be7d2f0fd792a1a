"""`zbench doctor`: what this machine can run, its noise (`--aa`) and its rates (`--calibrate`)."""

import dataclasses
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from zbench.analysis.noise import NoiseReport, noise_report
from zbench.analysis.settings import PAIRED_THRESHOLDS, Settings
from zbench.app.compare import measure, parse_blocks
from zbench.cli import console, options
from zbench.errors import ExitCode, ZbenchError
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.estimate.roofline import attaining
from zbench.launch.doctor import examine
from zbench.launch.process.local import run_once
from zbench.launch.trial import run_trial
from zbench.spec.document import dump_yaml
from zbench.spec.machine import MachineSpec
from zbench.spec.trial import TrialSpec

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


_NOISE_SWEEP = {
    "name": "noise",
    "workload": {"model": "gpt", "preset": "nano", "sequence_length": 64},
    "run": {"world_size": 2, "warmup_steps": 3, "steps": 20},
    "axes": {"zero_stage": [0, 1, 2]},
    "verify": {"mode": "off"},
}


def _report_noise(sweep: Path | None, blocks: str | None, seed: int | None) -> ExitCode:
    """Compare this version with itself and print the smallest slowdown that this machine can detect (a
    document with --json); return 1 if there was a false alarm.
    """
    with tempfile.TemporaryDirectory(prefix="zbench-noise-") as scratch:
        file = sweep or Path(scratch) / "noise.json"
        if sweep is None:
            file.write_text(json.dumps(_NOISE_SWEEP))
        sides, settings = (sys.executable, sys.executable), Settings(thresholds=PAIRED_THRESHOLDS)
        comparison = measure(sides, file, parse_blocks(blocks), settings, console.voice(), seed=seed)
    noise = noise_report(comparison)
    code = ExitCode.REGRESSION if noise.alarms else ExitCode.PASS
    if console.state.json:
        values = dataclasses.asdict(noise)
        values |= {key: None for key, v in values.items() if isinstance(v, float) and not math.isfinite(v)}
        console.document({"aa": values}, code)
    else:
        console.result(_noise_text(noise))
    return code


def _noise_text(noise: NoiseReport) -> str:
    size = f"{noise.comparisons} configurations, {noise.blocks} blocks"
    return "\n".join(
        [
            f"this version against itself: {size}, {noise.alarms} false alarms",
            f"noise of one block      {noise.noise:.1%} (the noisiest configuration)",
            f"drift, start to end     {noise.drift:+.1%}",
            f"threshold to use        --threshold step_time={100 * noise.margin:.3g}% with --paired",
            f"detectable slowdown     {noise.detectable:.1%} (nine times in ten, at that threshold)",
        ]
    )


_TINY: dict[str, Any] = {
    "model": "gpt",
    "options": {"layers": 4, "width": 32, "heads": 2},
    "sequence_length": 8,
    "micro_batch_size": 1,
    "data": {"synthetic": True},
}
_PROBE = {**_TINY, "options": {}, "preset": "micro", "sequence_length": 96, "micro_batch_size": 3}


def calibrate(world_size: int) -> MachineSpec:
    """Return one rank's rates while `world_size` ranks share this machine; ZbenchError if its ranks fail.

    `attained` is the fraction of these rates that a training step of a small GPT reaches.
    """
    here = Path.cwd()
    tiny = _calibration_trial(_TINY, world_size)
    rates = run_once("zbench.worker.facts:measure", tiny, here, patience=180.0)
    machine = MachineSpec.model_validate({key: value for key, value in rates.items() if value is not None})
    probe = _calibration_trial(_PROBE, world_size)
    with tempfile.TemporaryDirectory(prefix="zbench-") as scratch:
        record = run_trial(probe, run_dir=Path(scratch), base_dir=here)
    with Simulator(here, jobs=1) as simulator:
        estimate = simulator.of(probe)
    if record.timing is None or not isinstance(estimate, Estimate):
        raise ZbenchError(f"a training step could not be measured and simulated: {record.error or estimate}")
    return attaining(machine, estimate, probe, record.timing.median_step_s)


def _calibration_trial(workload: dict[str, Any], world_size: int) -> TrialSpec:
    run = {"world_size": world_size, "warmup_steps": 1, "steps": 30}
    values = {"workload": workload, "run": run, "engine": {"zero_stage": 2}, "verify": {"mode": "off"}}
    return TrialSpec.model_validate(values)


def _report_rates(world_size: int) -> ExitCode:
    """Measure, and print the rates as YAML (a document with --json)."""
    machine = calibrate(world_size).model_dump(mode="json", exclude_none=True, exclude_defaults=True)
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
