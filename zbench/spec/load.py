"""Sweep file, `ZBENCH_*` and `--set` to a SweepSpec: command line > environment > file > defaults."""

import copy
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import zbench
from zbench.errors import SpecError
from zbench.spec import overrides as settings
from zbench.spec.axes import Axis, included, matching
from zbench.spec.document import Document, parse_scalar, read_document, read_text
from zbench.spec.environments import unknown_names
from zbench.spec.expand import all_points, checked_axes
from zbench.spec.inputs import input_problems, place_of
from zbench.spec.machine import described
from zbench.spec.problems import KeyPath, Problem, ProblemsError, key_text, problems_of, shown, unwritable
from zbench.spec.sweep import AxisSpec, ObjectiveSpec, SweepSpec
from zbench.spec.trial import InvalidTrial


def load_sweep(
    path: Path | str,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    inputs: bool = True,
) -> SweepSpec:
    """Read a sweep file and the settings above it; axes come back under short keys with canonical values.

    Every mistake is a SpecError (exit code 2) that names file, line, key and remedy. `environ` defaults to
    the process's environment; `overrides` are `KEY=VALUE` texts. `inputs=False` leaves unchecked whether the
    texts and models that the file names exist beside it, for a file that is only looked at.
    """
    path = sweep_file(Path(path))
    document = read_document(path)
    if document.data is None:
        message = "this file is empty; begin with `axes:`, or let `zbench init` write one"
        raise SpecError(message, file=document.file)
    if not isinstance(document.data, dict):
        message = f"expected a mapping of keys such as `workload:` and `axes:`, got {shown(document.data)}"
        raise SpecError(f"{message}; `zbench init` writes one", file=document.file, line=document.line_of(()))
    data = {"name": _default_name(path), **document.data}
    return _parse(data, document, overrides, environ, path.parent if inputs else None, None)


def recorded_objective(path: Path) -> ObjectiveSpec:
    """Return the objective of a sweep as a run directory holds it, which is all that a table needs of it."""
    try:
        return _objective(read_text(path))
    except SpecError as error:
        raise SpecError(error.message, file=str(path), line=error.line, key=error.key) from None


@lru_cache
def _objective(text: str) -> ObjectiveSpec:
    """Return the objective that YAML text names; the runs of one sweep have the same text."""
    data = parse_scalar(text, "sweep")
    if not isinstance(data, Mapping):
        raise SpecError(f"expected the keys of a sweep, got {shown(data)}; restore what the run began with")
    written = {"objective": data["objective"]} if "objective" in data else {}
    return sweep_from_mapping(written, environ={}).objective


def sweep_from_mapping(
    data: Mapping[str, Any],
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    source: str = "command line",
    inputs: bool = False,
) -> SweepSpec:
    """Return the sweep that plain data means, with the same checks and precedence as a file.

    inputs: whether what it names must exist, as for a sweep that is to run; paths begin where you are.
    """
    here = Path.cwd()
    return _parse(dict(data), Document(data, source), overrides, environ, here if inputs else None, here)


def _default_name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-.") or "sweep"


def _parse(
    data: dict[str, Any],
    document: Document,
    overrides: Sequence[str],
    environ: Mapping[str, str] | None,
    base_dir: Path | None,
    place: Path | None,
) -> SweepSpec:
    """Return the checked sweep. base_dir: where what it names must exist; place: where its paths begin."""
    variables = settings.from_environment(os.environ if environ is None else environ)
    data = copy.deepcopy(data)
    origins = settings.apply(data, [*variables, *settings.from_options(overrides)])
    try:
        if broken := list(unwritable(data)):
            raise ProblemsError(broken)
        try:
            sweep = SweepSpec.model_validate(data)
        except ValidationError as error:
            raise ProblemsError(problems_of(error, data, SweepSpec)) from None
        if (begins := base_dir or place) is not None:
            sweep = sweep.placed(begins)
        return _canonical(sweep, base_dir)
    except ProblemsError as error:
        raise _located(error.problems, document, origins) from None


def _canonical(sweep: SweepSpec, base_dir: Path | None) -> SweepSpec:
    """Check everything that needs the whole sweep, and put axes under short keys with canonical values."""
    problems: list[Problem] = []
    for check in (checked_axes, matching, included):
        try:
            check(sweep)
        except ProblemsError as error:
            problems += error.problems
    if not problems and sweep.place is not None:
        problems += unknown_names(sweep, sweep.place)
    if problems:
        raise ProblemsError(problems)
    if base_dir is not None and (unfit := input_problems(sweep, base_dir)):
        raise ProblemsError(unfit)
    axes = checked_axes(sweep)
    _check_something_can_run(sweep, axes)
    canonical = {
        "axes": {axis.key: _written(axis) for axis in axes},
        "machine": described(sweep.machine, sweep.place),
    }
    return sweep.model_copy(update=canonical)


def _written(axis: Axis) -> list[Any] | AxisSpec:
    """Return an axis as a sweep file holds it, its values canonical."""
    when = {key: list(values) for key, values in axis.when.items()}
    if axis.range is not None:
        limits = axis.range
        return AxisSpec(low=limits.low, high=limits.high, log=limits.log, step=limits.step, when=when)
    values = list(axis.values or ())
    return AxisSpec(values=values, when=when) if when else values


def _check_something_can_run(sweep: SweepSpec, axes: Sequence[Axis]) -> None:
    """Refuse a sweep of which no point can exist, or whose points are all excluded."""
    if any(axis.range is not None for axis in axes):
        return
    first: InvalidTrial | None = None
    count = 0
    for trial in all_points(sweep):
        if not isinstance(trial, InvalidTrial):
            return
        first, count = first or trial, count + 1
    if first is None:
        raise ProblemsError([Problem(("exclude",), "every point is excluded; remove an entry")])
    every = f"none of the {count} points can exist; the first: " if count > 1 else ""
    raise ProblemsError([Problem(place_of(sweep, first.key), every + first.reason)])


def _located(problems: Iterable[Problem], document: Document, origins: Mapping[KeyPath, str]) -> SpecError:
    """Return one error for all problems, each with its file and line or the setting it came from."""
    errors = []
    for problem in problems:
        around = (problem.path[:length] for length in range(len(problem.path), 0, -1))
        origin = next((origins[path] for path in around if path in origins), None)
        line = None if origin else document.line_of(problem.path)
        key = key_text(problem.path)
        errors.append(SpecError(problem.message, file=origin or document.file, line=line, key=key))
    first, rest = errors[0], errors[1:]
    text = "\n".join([first.message, *(str(error) for error in rest)])
    return SpecError(text, file=first.file, line=first.line, key=first.key)


def shipped_directory() -> Path | None:
    """Return where the shipped sweeps lie: in a clone beside the package, in a wheel within it."""
    package = Path(zbench.__file__).parent
    places = (package.parent / "sweeps", package / "sweeps")
    return next((place for place in places if (place / "quickstart.yaml").is_file()), None)


def shipped_names() -> list[str]:
    """Return the names of the shipped sweeps."""
    place = shipped_directory()
    return sorted(file.stem for file in place.glob("*.yaml")) if place else []


def sweep_file(path: Path) -> Path:
    """Return the shipped sweep that a bare name such as `quickstart` means; any other path as it is."""
    place = shipped_directory()
    if place is None or path.exists() or path.name != str(path) or path.suffix:
        return path
    shipped = place / f"{path.name}.yaml"
    return shipped if shipped.is_file() else path
