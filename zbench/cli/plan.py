"""`zbench plan` (= `zbench sweep --dry-run`): the trials of a sweep, and those that cannot exist."""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from zbench.cli import console
from zbench.cli.options import Overrides, SweepFile, common_flags

if TYPE_CHECKING:
    from zbench.spec.axes import Axis
    from zbench.spec.expand import Expansion, InvalidTrial
    from zbench.spec.sweep import SweepSpec
    from zbench.spec.trial import TrialSpec


@common_flags()
def command(
    file: SweepFile,
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Print the trials of a sweep file without running them, and the invalid ones with reasons."""
    from zbench.spec.load import load_sweep

    print_plan(load_sweep(file, overrides))


def print_plan(sweep: "SweepSpec") -> None:
    """Print what a sweep would run: one document, a table on a terminal, or plain lines."""
    from zbench.cli.conclusion import warn_of_unused
    from zbench.spec.axes import resolve_axes
    from zbench.spec.expand import expand

    axes = resolve_axes(sweep)
    drawn = any(axis.range is not None for axis in axes)
    expansion = None if drawn else expand(sweep)
    if expansion is not None:
        warn_of_unused(sweep, expansion)
    if console.state.json:
        console.document(_document(sweep, axes, expansion))
    elif expansion is None:
        _print_space(sweep, axes)
    else:
        _print_trials(sweep, expansion)


def _document(sweep: "SweepSpec", axes: "list[Axis]", expansion: "Expansion | None") -> dict[str, Any]:
    trials = expansion.trials if expansion else []
    invalid = expansion.invalid if expansion else []
    return {
        "schema_version": 1,
        "name": sweep.name,
        "search": sweep.search.model_dump(mode="json"),
        "axes": {axis.key: _space(axis) for axis in axes},
        "trials": [
            {"trial_id": trial.trial_id, "axes": trial.axes, "config": trial.config()} for trial in trials
        ],
        "invalid": [
            {"trial_id": trial.trial_id, "axes": trial.axes, "key": trial.key, "reason": trial.reason}
            for trial in invalid
        ],
        "counts": _counts(expansion) if expansion else None,
        "exit_code": 0,
    }


def _counts(expansion: "Expansion") -> dict[str, int]:
    return {
        "trials": len(expansion.trials),
        "invalid": len(expansion.invalid),
        "excluded": expansion.excluded,
        "duplicates": expansion.duplicates,
    }


def _space(axis: "Axis") -> dict[str, Any]:
    """Return an axis as JSON: its values or its range, and where it applies."""
    form: dict[str, Any] = {"values": list(axis.values or ())}
    if axis.range is not None:
        form = {"range": dataclasses.asdict(axis.range)}
    return form | ({"when": {key: list(values) for key, values in axis.when.items()}} if axis.when else {})


def _print_space(sweep: "SweepSpec", axes: "list[Axis]") -> None:
    """Print the axes of a search whose points are not known before it runs."""
    console.result(f"{sweep.name}: {sweep.search.method} draws {sweep.search.trials} points from")
    for axis in axes:
        console.result(f"  {axis.key}: {json.dumps(_space(axis))}")


def _print_trials(sweep: "SweepSpec", expansion: "Expansion") -> None:
    if console.is_terminal(sys.stdout):
        _print_table(expansion)
    else:
        for trial in expansion.trials:
            console.result(f"{trial.trial_id}  {_point(trial.axes)}")
        for bad in expansion.invalid:
            console.result(f"{bad.trial_id}  {_point(bad.axes)}  invalid: {bad.reason}")
    console.result(_summary(sweep, expansion))


def _print_table(expansion: "Expansion") -> None:
    from rich.table import Table

    every: list[TrialSpec | InvalidTrial] = [*expansion.trials, *expansion.invalid]
    keys = list(dict.fromkeys(key for trial in every for key in trial.axes))
    table = Table("trial", *keys, "", box=None, header_style="bold")
    for trial in every:
        note = getattr(trial, "reason", "")
        cells = [_value(trial.axes[key]) if key in trial.axes else "-" for key in keys]
        table.add_row(trial.trial_id, *cells, f"invalid: {note}" if note else "", style="dim" if note else "")
    console.rich_console().print(table)


def _summary(sweep: "SweepSpec", expansion: "Expansion") -> str:
    counts = _counts(expansion)
    trials = counts.pop("trials")
    parts = [f"{trials} trial{'' if trials == 1 else 's'} of {sweep.run.repeats} repeats"]
    parts += [f"{count} {name}" for name, count in counts.items() if count]
    if sweep.search.method != "grid":
        parts.append(f"{sweep.search.method} tries {min(sweep.search.trials, trials)} of them")
    return f"{sweep.name}: {', '.join(parts)}"


def _point(axes: dict[str, Any]) -> str:
    return " ".join(f"{key}={_value(value)}" for key, value in axes.items()) or "(the one configuration)"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
