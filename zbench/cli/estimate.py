"""`zbench estimate`: what every configuration of a sweep needs, at any world size, without an accelerator."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zbench.cli import console
from zbench.cli.estimate_print import print_rows
from zbench.cli.estimate_rows import EstimateRow
from zbench.cli.options import Overrides, common_flags, memory_size
from zbench.errors import ExitCode, UsageError
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.estimate.roofline import ASSUMED, step_time
from zbench.estimate.search import limits as search
from zbench.spec.deepspeed import from_deepspeed
from zbench.spec.document import read_document
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep, sweep_file, sweep_from_mapping
from zbench.spec.machine import described
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec

_ASSUMED = (
    "ranks that read one another's memory, as on one host; over sockets or NCCL each collective under way"
    " holds receive buffers, too, of up to a bucket"
)
File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Sweep file: YAML, TOML or JSON.")]
WorldSize = Annotated[int | None, typer.Option(min=1, help="Ranks to simulate. [default: the file's]")]
DeviceMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of one device, such as 80Gi: what fits in it?")
]
AskLimits = Annotated[
    bool,
    typer.Option("--limits", help="Also find the smallest world size and the largest micro-batch that fit."),
]
MachineName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Also estimate a step's time: a card such as H100, or a file of its rates."
    ),
]
DeepSpeedFile = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Begin with a DeepSpeed JSON configuration.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw memory over one step: a .svg, .png or .html file.")
]
Measured = Annotated[
    bool, typer.Option("--measured", help="With --plot: run each configuration here and draw that, too.")
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Configurations simulated at once. [default: usable cores]")
]


@common_flags()
def command(
    file: File = None,
    world_size: WorldSize = None,
    device_memory: DeviceMemory = None,
    limits: AskLimits = False,
    machine: MachineName = None,
    deepspeed: DeepSpeedFile = None,
    plot: Plot = None,
    measured: Measured = False,
    jobs: Jobs = None,
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Say whether each configuration fits, by running the real engine on tensors without data.

    One process, no accelerator: peak memory of one rank by category, traffic and FLOPs of a step. With the
    rates of a machine also the time of a step, as a range.
    """
    memory = None if device_memory is None else memory_size("--device-memory", device_memory)
    if limits and memory is None:
        raise UsageError("--limits: what is to fit into? Add --device-memory, such as --device-memory 80Gi")
    if measured and plot is None:
        raise UsageError("--measured draws beside the simulation: add --plot FILE, such as --plot step.svg")
    sweep, base_dir = _sweep(file, deepspeed, _settings(overrides, world_size, machine))
    expansion = expand(sweep)
    rows = _rows(sweep, expansion.trials, base_dir, memory, limits, jobs, plot is not None)
    if plot is not None:
        from zbench.cli.estimate_plot import draw_rows

        draw_rows(plot, rows, base_dir, measured=measured)
    if console.state.json:
        console.document(_document(sweep, rows, expansion.invalid, memory))
    else:
        print_rows(rows, expansion.invalid)
        _print_assumed(rows)
    raise typer.Exit(_exit_code(rows))


def _settings(overrides: list[str], world_size: int | None, machine: str | None) -> list[str]:
    given = [] if world_size is None else [f"run.world_size={world_size}"]
    return [*overrides, *given, *([] if machine is None else [f"machine={machine}"])]


def _rows(
    sweep: SweepSpec,
    trials: Sequence[TrialSpec],
    base_dir: Path,
    memory: int | None,
    limits: bool,
    jobs: int | None,
    timeline: bool,
) -> list[EstimateRow]:
    """Simulate every configuration."""
    machine = described(sweep.machine, sweep.place)
    rows = []
    with Simulator(base_dir, jobs=jobs, timeline=timeline) as simulator:
        for trial, outcome in zip(trials, list(simulator.each(trials)), strict=True):
            simulated = isinstance(outcome, Estimate)
            found = search(simulator, trial, memory) if limits and memory is not None and simulated else None
            time = step_time(outcome, trial, machine) if machine and isinstance(outcome, Estimate) else None
            rows.append(EstimateRow(trial, outcome, memory, found, time))
    return rows


def _sweep(file: Path | None, deepspeed: Path | None, given: list[str]) -> tuple[SweepSpec, Path]:
    if deepspeed is not None:
        if file is not None:
            raise UsageError("give a sweep file or --from, not both; --set changes keys of either")
        translated = from_deepspeed(read_document(deepspeed).data)
        for note in translated.notes:
            console.warn(note)
        return sweep_from_mapping({"name": "estimate", **translated.document}, given), Path.cwd()
    if file is None:
        return sweep_from_mapping({"name": "estimate"}, given), Path.cwd()
    path = sweep_file(file)
    return load_sweep(path, given), path.absolute().parent


def _document(
    sweep: SweepSpec, rows: Sequence[EstimateRow], invalid: Sequence[InvalidTrial], memory: int | None
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": sweep.name,
        "device_memory": memory,
        "assumed": _ASSUMED,
        "time_assumed": _time_assumed(rows),
        "trials": [row.to_json() for row in rows],
        "invalid": [trial.document() for trial in invalid],
        "exit_code": int(_exit_code(rows)),
    }


def _exit_code(rows: Sequence[EstimateRow]) -> ExitCode:
    """Return USAGE where no configuration could be simulated."""
    return ExitCode.USAGE if all(row.estimate is None for row in rows) else ExitCode.PASS


def _time_assumed(rows: Sequence[EstimateRow]) -> str | None:
    """Return what the times assume; None where there are none."""
    return ASSUMED if any(row.time is not None for row in rows) else None


def _print_assumed(rows: Sequence[EstimateRow]) -> None:
    if any(row.trial.run.world_size > 1 for row in rows):
        console.note(f"assumed: {_ASSUMED}")
    if (assumed := _time_assumed(rows)) is not None:
        console.note(f"assumed: {assumed}")
