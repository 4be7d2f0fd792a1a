"""`zbench estimate`: what every configuration of a sweep needs, at any world size, without an accelerator."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zbench.cli import console
from zbench.cli.options import Overrides, common_flags, memory_size
from zbench.errors import UsageError
from zbench.units import format_bytes

if TYPE_CHECKING:
    from zbench.estimate.result import Estimate, SimulationOutcome
    from zbench.estimate.search import Limits
    from zbench.spec.expand import InvalidTrial
    from zbench.spec.sweep import SweepSpec
    from zbench.spec.trial import TrialSpec

_LONGEST = 8  # allocations that are named
_ASSUMED = (
    "ranks that read one another's memory, as on one host; over sockets or NCCL each collective under way"
    " holds receive buffers, too, of up to a bucket"
)


@common_flags()
def command(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Sweep file: YAML, TOML or JSON.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Ranks to simulate. [default: the file's]")
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of one device, such as 80Gi: what fits in it?")
    ] = None,
    limits: Annotated[
        bool,
        typer.Option(
            "--limits", help="Also find the smallest world size and the largest micro-batch that fit."
        ),
    ] = False,
    deepspeed: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Begin with a DeepSpeed JSON configuration.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw memory over one step: a .svg, .png or .html file."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Configurations simulated at once. [default: usable cores]")
    ] = None,
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Say whether each configuration fits, by running the real engine on tensors without data.

    One process, no accelerator: peak memory of one rank by category, traffic and FLOPs of a step.
    """
    from zbench.estimate.client import Simulator
    from zbench.estimate.search import limits as search
    from zbench.spec.expand import expand

    memory = None if device_memory is None else memory_size("--device-memory", device_memory)
    if limits and memory is None:
        raise UsageError("--limits: what is to fit into? Add --device-memory, such as --device-memory 80Gi")
    sweep, base_dir = _sweep(file, deepspeed, world_size, overrides)
    expansion = expand(sweep)
    trials = expansion.trials
    with Simulator(base_dir, jobs=jobs, timeline=plot is not None) as simulator:
        found = list(simulator.each(trials))
        known = [
            search(simulator, trial, memory) if limits and memory is not None and _is(outcome) else None
            for trial, outcome in zip(trials, found, strict=True)
        ]
    rows = list(zip(trials, found, known, strict=True))
    if plot is not None:
        _plot(plot, trials, found)
    if console.state.json:
        console.document(_document(sweep, rows, expansion.invalid, memory))
    else:
        _print(rows, expansion.invalid, memory)
        if any(trial.run.world_size > 1 for trial in trials):
            console.note(f"assumed: {_ASSUMED}")


def _is(outcome: "SimulationOutcome") -> bool:
    from zbench.estimate.result import Estimate

    return isinstance(outcome, Estimate)


def _sweep(
    file: Path | None, deepspeed: Path | None, world_size: int | None, overrides: list[str]
) -> "tuple[SweepSpec, Path]":
    from zbench.spec.deepspeed import from_deepspeed
    from zbench.spec.document import read_document
    from zbench.spec.load import load_sweep, sweep_from_mapping
    from zbench.spec.shipped import sweep_file

    given = list(overrides)
    if world_size is not None:
        given.append(f"run.world_size={world_size}")
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
    sweep: "SweepSpec", rows: list[Any], invalid: "list[InvalidTrial]", memory: int | None
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": sweep.name,
        "device_memory": memory,
        "assumed": _ASSUMED,
        "trials": [_row(trial, outcome, found, memory) for trial, outcome, found in rows],
        "invalid": [
            {"trial_id": trial.trial_id, "axes": trial.axes, "key": trial.key, "reason": trial.reason}
            for trial in invalid
        ],
        "exit_code": 0,
    }


def _row(
    trial: "TrialSpec", outcome: "SimulationOutcome", found: "Limits | None", memory: int | None
) -> dict[str, Any]:
    from zbench.estimate.result import Estimate

    row: dict[str, Any] = {
        "trial_id": trial.trial_id,
        "axes": trial.axes,
        "world_size": trial.run.world_size,
        "micro_batch_size": trial.workload.micro_batch_size,
    }
    if not isinstance(outcome, Estimate):
        return {**row, "not_simulated": outcome.reason}
    row["estimate"] = outcome.to_json()
    if memory is not None:
        spare = memory - outcome.peak_device_bytes
        row |= {"fits": spare >= 0, "spare_bytes": spare}
    if found is not None:
        row["smallest_world_size"] = found.smallest_world_size
        row["largest_micro_batch"] = found.largest_micro_batch
        row["undecided"] = found.undecided
    return row


def _verdict(outcome: "Estimate", memory: int) -> str:
    spare = memory - outcome.peak_device_bytes
    if spare < 0:
        return f"does not fit: {format_bytes(-spare)} too much"
    text = f"fits with {format_bytes(spare)} to spare"
    if outcome.build_device_bytes > memory:
        whole = format_bytes(outcome.build_device_bytes)
        text += f" (but building the model whole takes {whole}: use sharded_init)"
    return text


def _print(rows: list[Any], invalid: "list[InvalidTrial]", memory: int | None) -> None:
    table = [_cells(trial, outcome, found, memory) for trial, outcome, found in rows]
    keys = list(dict.fromkeys(key for cells in table for key in cells))
    if console.is_terminal(sys.stdout):
        from rich.table import Table

        drawn = Table(*keys, box=None, header_style="bold")
        for cells in table:
            drawn.add_row(*(cells.get(key, "-") for key in keys))
        console.rich_console().print(drawn)
    else:
        for cells in table:
            console.result("  ".join(f"{key}={value}" for key, value in cells.items()))
    for bad in invalid:
        console.result(f"{bad.trial_id}  invalid: {bad.reason}")
    for trial, outcome, _ in rows:
        if len(rows) == 1 and _is(outcome):
            _print_peak(trial, outcome)


def _cells(
    trial: "TrialSpec", outcome: "SimulationOutcome", found: "Limits | None", memory: int | None
) -> dict[str, str]:
    from zbench.estimate.result import Estimate

    cells = {key: str(value) for key, value in trial.axes.items()} or {"trial": trial.trial_id}
    if not isinstance(outcome, Estimate):
        return {**cells, "verdict": f"not simulated: {outcome.reason}"}
    cells |= {
        "device": format_bytes(outcome.peak_device_bytes),
        "host": format_bytes(outcome.peak_host_bytes),
    }
    state = sum(outcome.device.get(name, 0) for name in ("parameters", "gradients", "master", "moments"))
    cells["state"] = format_bytes(state)
    cells["activations"] = format_bytes(outcome.device.get("activations", 0))
    cells["other"] = format_bytes(outcome.peak_device_bytes - state - outcome.device.get("activations", 0))
    cells["traffic"] = format_bytes(sum(kind["bytes"] for kind in outcome.traffic.values()))
    if memory is not None:
        cells["verdict"] = _verdict(outcome, memory)
    if found is not None:
        unknown = {name: f"undecided ({why})" for name, why in found.undecided.items()}
        world, batch = found.smallest_world_size, found.largest_micro_batch
        cells["ranks"] = f">= {world}" if world else unknown.get("smallest_world_size", "none fits")
        cells["micro-batch"] = f"<= {batch}" if batch else unknown.get("largest_micro_batch", "none fits")
    return cells


def _print_peak(trial: "TrialSpec", outcome: "Estimate") -> None:
    console.result(f"\nPeak in {outcome.phase}, per rank of {trial.run.world_size}:")
    for place, held in (("device", outcome.device), ("host", outcome.host)):
        for name, size in sorted(held.items(), key=lambda item: -item[1]):
            console.result(f"  {place:6}  {name:12}  {format_bytes(size):>9}  {size:>16,} bytes")
    console.result("\nLargest allocations alive then:")
    for each in outcome.alive[:_LONGEST]:
        shape = "x".join(map(str, each.shape))
        console.result(
            f"  {format_bytes(each.nbytes):>9}  {each.category:12}  {each.count} x [{shape}] {each.dtype}"
            f"  {each.where}"
        )
    console.result("\nTraffic of one step:")
    for kind, moved in outcome.traffic.items():
        console.result(f"  {kind:18}  {moved['calls']:>5} calls  {format_bytes(moved['bytes']):>9}")
    if outcome.flops:
        console.result(f"\n{outcome.flops:.4g} FLOPs a step and rank")


def _plot(path: Path, trials: "list[TrialSpec]", found: "list[SimulationOutcome]") -> None:
    from zbench.estimate.picture import draw
    from zbench.estimate.result import Estimate

    drawn = [(trial, each) for trial, each in zip(trials, found, strict=True) if isinstance(each, Estimate)]
    if not drawn:
        raise UsageError(
            f"--plot {path}: no configuration could be simulated; see the reasons without --plot"
        )
    draw(path, [(_title(trial), each) for trial, each in drawn])


def _title(trial: "TrialSpec") -> str:
    return " ".join(f"{key}={value}" for key, value in trial.axes.items()) or trial.trial_id
