"""`zbench estimate`: what every configuration of a sweep needs, at any world size, without an accelerator."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from zbench.cli import console, options
from zbench.cli.estimate_table import print_rows
from zbench.errors import ExitCode, UsageError
from zbench.estimate.client import Simulator
from zbench.estimate.roofline import ASSUMED, StepTime, step_time
from zbench.estimate.row import EstimateRow
from zbench.estimate.search import limits as search
from zbench.spec.combinations import advice
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep, sweep_file, sweep_from_mapping
from zbench.spec.machine import described, is_card
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec, samples_per_step
from zbench.units import parse_count

_ASSUMED = (
    "all ranks are on one host and read one another's memory; over sockets each running collective also needs"
    " a receive buffer of up to one bucket; for a GPU's sizes and receive buffers set run.device=cuda"
)
_ASSUMED_OF_CARDS = "a GPU's default sizes, and NCCL with its receive buffers"


def command(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Sweep file: YAML, TOML or JSON.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks to simulate. Default: that of the file.")
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Say what fits in this device memory, such as 80Gi.")
    ] = None,
    limits: Annotated[
        bool,
        typer.Option(
            "--limits", help="Also find the smallest world size and the largest micro-batch that fit."
        ),
    ] = False,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Also estimate a step's time on this GPU, such as H100, or file of rates."
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="N", help="Also estimate the time for N tokens, such as 15T; needs --machine."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Configurations to simulate at once. Default: usable cores.")
    ] = None,
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Estimate whether each configuration fits, by running the real engine on tensors without data.

    One process without an accelerator computes one rank's peak memory by
    category, and the traffic and FLOPs of a step. With --machine it also
    estimates the time of a step, as a range.
    """
    memory = None if device_memory is None else options.memory_size("--device-memory", device_memory)
    if limits and memory is None:
        raise UsageError("--limits needs the memory of a device; add it, such as --device-memory 80Gi")
    given = [] if world_size is None else [f"run.world_size={world_size}"]
    given += [] if machine is None else [f"machine={machine}"]
    settings = [*overrides, *given]
    if file is None:
        sweep, base_dir = sweep_from_mapping({"name": "estimate"}, settings), Path.cwd()
    else:
        path = sweep_file(file)
        sweep, base_dir = load_sweep(path, settings), path.absolute().parent
    expansion = expand(sweep)
    if tokens is not None and sweep.machine is None:
        raise UsageError("--tokens needs the rates of a machine; add --machine, such as --machine H100")
    try:
        count = None if tokens is None else parse_count(tokens)
    except ValueError as error:
        raise UsageError(f"--tokens: {error}") from None
    rows = _rows(sweep, expansion.trials, base_dir, memory, limits, jobs)
    if count is not None:
        rows = [replace(row, training=(count, _training(row, count))) for row in rows]
    code = ExitCode.PASS if any(row.estimate is not None for row in rows) else ExitCode.USAGE
    if console.state.json:
        console.document(_document(sweep, rows, expansion.invalid, memory), code)
    else:
        print_rows(rows, expansion.invalid)
        for text in dict.fromkeys(filter(None, (advice(row.trial.engine) for row in rows))):
            console.note(f"note: {text}")
        if any(row.trial.run.world_size > 1 for row in rows):
            console.note(f"assumed: {_assumed(rows)}")
        if any(row.time is not None for row in rows):
            console.note(f"assumed: {ASSUMED}")
    raise typer.Exit(code)


def _rows(
    sweep: SweepSpec,
    trials: Sequence[TrialSpec],
    base_dir: Path,
    memory: int | None,
    limits: bool,
    jobs: int | None,
) -> list[EstimateRow]:
    """Simulate every configuration."""
    machine = described(sweep.machine, sweep.place)
    if is_card(machine):
        trials = [_on_card(trial) for trial in trials]
    rows = []
    with Simulator(base_dir, jobs=jobs) as simulator:
        for trial, outcome in zip(trials, list(simulator.each(trials)), strict=True):
            row = EstimateRow(trial, outcome, memory)
            if limits and memory is not None and row.estimate is not None:
                row = replace(row, limits=search(simulator, trial, memory))
            if machine and row.estimate is not None:
                row = replace(row, time=step_time(row.estimate, trial, machine))
            rows.append(row)
    return rows


def _on_card(trial: TrialSpec) -> TrialSpec:
    """Return the trial on a GPU, unless it asks for a device."""
    if trial.run.device != "auto":
        return trial
    return trial.model_copy(update={"run": trial.run.model_copy(update={"device": "cuda"})})


def _assumed(rows: Sequence[EstimateRow]) -> str:
    return _ASSUMED_OF_CARDS if all(row.trial.run.device == "cuda" for row in rows) else _ASSUMED


def _training(row: EstimateRow, tokens: int) -> tuple[float, float] | str:
    """Return the least and the most seconds for this number of tokens, or why they are not known."""
    workload = row.trial.workload
    if ":" in workload.model.removeprefix("hf:") or workload.data.dataset is not None:
        return "the workload does not say what a token is"
    if not isinstance(row.time, StepTime):
        return row.time or "not simulated"
    steps = tokens / (samples_per_step(row.trial) * workload.sequence_length)
    return steps * row.time.low_s, steps * row.time.high_s


def _document(
    sweep: SweepSpec, rows: Sequence[EstimateRow], invalid: Sequence[InvalidTrial], memory: int | None
) -> dict[str, Any]:
    return {
        "name": sweep.name,
        "device_memory": memory,
        "assumed": _assumed(rows),
        "time_assumed": ASSUMED if any(row.time is not None for row in rows) else None,
        "trials": [row.to_json() for row in rows],
        "invalid": [trial.document() for trial in invalid],
    }
