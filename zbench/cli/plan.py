"""`zbench plan` (= `zbench sweep --dry-run`): the trials of a sweep, and those that cannot exist."""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from zbench.analysis.adaptive_repeats import Prediction, predict
from zbench.cli import console
from zbench.cli.conclusion import warn_of_unused
from zbench.cli.options import DEFAULT_OUTPUT_DIR, OutputDir, Overrides, SweepFile, common_flags
from zbench.errors import UsageError
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate, SimulationOutcome
from zbench.record.environment import fingerprint, machine_facts
from zbench.record.store import load_environment, load_records, runs_of
from zbench.report.text import clock_text, plural
from zbench.spec.axes import Axis, resolve_axes
from zbench.spec.expand import Expansion, expand
from zbench.spec.load import load_sweep, sweep_file
from zbench.spec.sweep import SweepSpec
from zbench.units import format_bytes

_RUNS_READ = 5
"""So many of a sweep's newest runs are read for the prediction of its duration."""


@common_flags()
def command(
    file: SweepFile,
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Simulate each trial, too: peak memory of one rank; takes seconds."),
    ] = False,
) -> None:
    """Print the trials of a sweep file without running them, and the invalid ones with reasons.

    Where the sweep ran on this machine before, its newest runs tell how long it will take.
    """
    sweep = load_sweep(file, overrides)
    print_plan(sweep, output_dir, sweep_file(file).absolute().parent if memory else None)


def print_plan(sweep: SweepSpec, output_dir: Path, simulated_in: Path | None = None) -> None:
    """Print what a sweep would run: one document, or lines.

    output_dir: where earlier runs of the sweep are. simulated_in: simulate the memory of each trial, too; the
    folder where relative paths of the sweep begin.
    """
    axes = resolve_axes(sweep)
    drawn = any(axis.range is not None for axis in axes)
    expansion = None if drawn else expand(sweep)
    if expansion is not None:
        warn_of_unused(sweep, expansion)
    duration = None if expansion is None else _duration(sweep, expansion, output_dir)
    needs = _needs(expansion, simulated_in)
    if console.state.json:
        console.document(_document(sweep, axes, expansion, duration, needs))
    elif expansion is None:
        _print_space(sweep, axes)
    else:
        _print_trials(sweep, expansion, needs)
    if duration is not None and expansion is not None and not console.state.json:
        known = f"{duration.known} of {len(expansion.trials)} configurations were measured here before"
        clock = clock_text(duration.seconds)
        console.result(f"about {clock} one after another, without references ({known})")


def _needs(expansion: Expansion | None, base_dir: Path | None) -> dict[str, SimulationOutcome]:
    """Return what one rank of each trial needs, by trial id; nothing without `base_dir`."""
    if base_dir is None:
        return {}
    if expansion is None:
        raise UsageError("--memory: a search draws its points; `zbench estimate` takes one configuration")
    with Simulator(base_dir) as simulator:
        found = simulator.each(expansion.trials)
        return {trial.trial_id: each for trial, each in zip(expansion.trials, found, strict=True)}


def _memory_text(needed: SimulationOutcome) -> str:
    if not isinstance(needed, Estimate):
        return f"not simulated: {needed.reason}"
    host = f" + {format_bytes(needed.peak_host_bytes)} host" if needed.peak_host_bytes else ""
    return format_bytes(needed.peak_device_bytes) + host


def _memory_document(needed: SimulationOutcome) -> dict[str, Any]:
    if not isinstance(needed, Estimate):
        return {"not_simulated": needed.reason}
    peaks = {"peak_device_bytes": needed.peak_device_bytes, "peak_host_bytes": needed.peak_host_bytes}
    return {"simulated": peaks}


def _duration(sweep: SweepSpec, expansion: Expansion, output_dir: Path) -> Prediction | None:
    """Return how long the sweep will take, by its newest runs on this machine that can be read."""
    newest = runs_of(sweep.name, output_dir)[-_RUNS_READ:]
    if not newest:
        return None
    machine, earlier = fingerprint(machine_facts()), []
    for path in newest:
        with contextlib.suppress(UsageError):
            if load_environment(path).get("fingerprint") == machine:
                earlier += load_records(path)
    return predict(expansion.trials, earlier)


def _document(
    sweep: SweepSpec,
    axes: list[Axis],
    expansion: Expansion | None,
    duration: Prediction | None,
    needs: dict[str, SimulationOutcome],
) -> dict[str, Any]:
    trials = expansion.trials if expansion else []
    invalid = expansion.invalid if expansion else []
    return {
        "name": sweep.name,
        "search": sweep.search.model_dump(mode="json"),
        "axes": {axis.key: _space(axis) for axis in axes},
        "trials": [
            {"trial_id": trial.trial_id, "axes": trial.axes, "config": trial.config()}
            | (_memory_document(needs[trial.trial_id]) if needs else {})
            for trial in trials
        ],
        "invalid": [trial.document() for trial in invalid],
        "counts": _counts(expansion) if expansion else None,
        "predicted_seconds": None if duration is None else duration.seconds,
    }


def _counts(expansion: Expansion) -> dict[str, int]:
    return {
        "trials": len(expansion.trials),
        "invalid": len(expansion.invalid),
        "excluded": expansion.excluded,
        "duplicates": expansion.duplicates,
    }


def _space(axis: Axis) -> dict[str, Any]:
    """Return an axis as JSON: its values or its range, and where it applies."""
    form: dict[str, Any] = {"values": list(axis.values or ())}
    if axis.range is not None:
        form = {"range": dataclasses.asdict(axis.range)}
    return form | ({"when": {key: list(values) for key, values in axis.when.items()}} if axis.when else {})


def _print_space(sweep: SweepSpec, axes: list[Axis]) -> None:
    """Print the axes of a search whose points are not known before it runs."""
    console.result(f"{sweep.name}: {sweep.search.method} draws {sweep.search.trials} points from")
    for axis in axes:
        console.result(f"  {axis.key}: {json.dumps(_space(axis))}")


def _print_trials(sweep: SweepSpec, expansion: Expansion, needs: dict[str, SimulationOutcome]) -> None:
    for trial in expansion.trials:
        memory = f"  memory: {_memory_text(needs[trial.trial_id])}" if needs else ""
        console.result(f"{trial.trial_id}  {_point(trial.axes)}{memory}")
    for bad in expansion.invalid:
        console.result(f"{bad.trial_id}  {_point(bad.axes)}  invalid: {bad.reason}")
    counts = _counts(expansion)
    trials = counts.pop("trials")
    parts = [f"{plural(trials, 'trial')} of {plural(sweep.run.repeats, 'repeat')}"]
    parts += [f"{count} {name}" for name, count in counts.items() if count]
    if not sweep.search.is_listed:
        parts.append(f"{sweep.search.method} tries {min(sweep.search.trials, trials)} of them")
    console.result(f"{sweep.name}: {', '.join(parts)}")


def _point(axes: dict[str, Any]) -> str:
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in axes.items()}
    return " ".join(f"{key}={value}" for key, value in values.items()) or "(the one configuration)"
