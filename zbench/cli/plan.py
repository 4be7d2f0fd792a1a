"""`zbench plan` (= `zbench sweep --dry-run`): the trials of a sweep, and its invalid configurations."""

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Iterator
from typing import Any

from zbench.cli import console, options
from zbench.launch.references import references_needed
from zbench.report.text import axes_text, plural
from zbench.spec import environments
from zbench.spec.axes import Axis, resolve_axes
from zbench.spec.base_rows import rows_apart
from zbench.spec.combinations import advice
from zbench.spec.expand import Expansion, expand, warnings_of
from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec


def command(
    file: options.SweepFile,
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Print the trials of a sweep file without running them, and the invalid configurations with reasons."""
    with starting_nothing(True):
        print_plan(load_sweep(file, overrides))
    settings = [word for setting in overrides for word in ("--set", setting)]
    console.note(f"run them with: {shlex.join(['zbench', 'sweep', str(file), *settings])}")


@contextlib.contextmanager
def starting_nothing(is_dry: bool) -> Iterator[None]:
    """In a dry run, keep the body from starting other interpreters, and warn of what was not checked."""
    if not is_dry:
        yield
        return
    with environments.unasked() as left_out:
        yield
    for python in sorted(left_out):
        console.warn(f"{python}: not checked, because a plan starts nothing; `zbench doctor` checks it")


def print_plan(sweep: SweepSpec) -> None:
    """Print what a sweep would run: as a JSON document, or as lines."""
    axes = resolve_axes(sweep)
    drawn = any(axis.range is not None for axis in axes)
    expansion = None if drawn else expand(sweep)
    if expansion is not None:
        for warning in warnings_of(sweep, expansion):
            console.warn(warning)
    if console.state.json:
        console.document(_document(sweep, axes, expansion))
    elif expansion is None:
        _print_space(sweep, axes)
    else:
        _print_trials(sweep, expansion)


def _document(sweep: SweepSpec, axes: list[Axis], expansion: Expansion | None) -> dict[str, Any]:
    trials = expansion.trials if expansion else []
    invalid = expansion.invalid if expansion else []
    return {
        "name": sweep.name,
        "search": sweep.search.model_dump(mode="json"),
        "axes": {axis.key: _space(axis) for axis in axes},
        "trials": [
            {"trial_id": trial.trial_id, "axes": trial.axes, "config": trial.config()} for trial in trials
        ],
        "invalid": [trial.document() for trial in invalid],
        "counts": _counts(expansion) if expansion else None,
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


def _print_trials(sweep: SweepSpec, expansion: Expansion) -> None:
    for trial in expansion.trials:
        console.result(f"{trial.trial_id}  {axes_text(trial.axes)}")
    for text in dict.fromkeys(filter(None, (advice(trial.engine) for trial in expansion.trials))):
        console.note(f"note: {text}")
    for bad in expansion.invalid:
        console.result(f"{bad.trial_id}  {axes_text(bad.axes)}  invalid: {bad.reason}")
    counts = _counts(expansion)
    trials = counts.pop("trials")
    parts = [f"{plural(trials, 'trial')} of {plural(sweep.run.repeats, 'repeat')}"]
    parts += [f"{count} {name}" for name, count in counts.items() if count]
    if not sweep.search.is_listed:
        parts.append(f"{sweep.search.method} tries {min(sweep.search.trials, trials)} of them")
    console.result(f"{sweep.name}: {', '.join(parts)}")
    if sweep.workload.command is not None:
        _print_verdicts(sweep, expansion)


def _print_verdicts(sweep: SweepSpec, expansion: Expansion) -> None:
    """Print what the verdicts on a script cost, and which axes must not change what it trains."""
    references = references_needed(expansion.trials)
    if not references:
        console.result("no verdicts: name workload.checkpoint, and leave verify.mode at full")
        return
    runs = {1: "once", 2: "two to four times"}[sweep.verify.base_runs]
    console.result(f"verdicts: the script runs {runs} for each of {plural(references, 'reference')}")
    told = {key for trial in expansion.trials for key in rows_apart(trial)}
    for heading, keys in (
        ("must train the same (verify.same_training)", sweep.verify.same_training),
        ("may train otherwise, differences are told", sorted(told)),
    ):
        if keys:
            console.result(f"{heading}: {', '.join(keys)}")
