"""Builds a SweepSpec from (highest precedence first) `--set`, `ZBENCH_*` variables, the file, defaults.

The name of a variable is `ZBENCH_` and a key in capitals, with two underscores for each dot:
`ZBENCH_WORLD_SIZE=4`, `ZBENCH_OPTIMIZER__LR=1e-4`, `ZBENCH_SEARCH__TRIALS=20`. Variables and `--set` take the
same keys: any dotted key of the file, or an unambiguous bare name of workload, run or engine. Setting a key
that is an axis reduces that axis to this value.
"""

import copy
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import zbench
from zbench.errors import SpecError, closest, nearest
from zbench.masking import learn
from zbench.spec.axes import Axis, included, matching, resolve_axes
from zbench.spec.base_rows import declared_keys, precise_keys
from zbench.spec.document import Document, parse_scalar, read_sweep_file, read_text
from zbench.spec.expand import all_points, expand
from zbench.spec.foreign.recognition import converting
from zbench.spec.inputs import input_problems, place_of
from zbench.spec.keys import PARAMETERS, SECTIONS, Key, assign, known_paths, nested_model, resolve_key
from zbench.spec.machine import described, opened
from zbench.spec.problems import (
    Attempts,
    KeyPath,
    Problem,
    ProblemsError,
    check,
    key_text,
    problems_of,
    shown,
    unwritable,
)
from zbench.spec.sweep import AxisSpec, ObjectiveSpec, SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec

PREFIX = "ZBENCH_"


def load_sweep(
    path: Path | str,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    inputs: bool = True,
    simulated: bool = False,
) -> SweepSpec:
    """Read a sweep file and apply the settings that override it; axes get short keys and canonical values.

    environ: default: the process's environment. overrides: `KEY=VALUE` texts. inputs: check that the texts
    and models that the file names exist; False for a file that is only displayed. SpecError (exit code 2)
    with file, line, key and remedy of every mistake. simulated: see `expand`.
    """
    path = sweep_file(Path(path))
    document = read_sweep(path)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).strip("-.") or "sweep"
    place = path.parent if inputs else None
    return _parse({"name": name, **document.data}, document, overrides, environ, place, inputs, simulated)


def read_sweep(path: Path) -> Document:
    """Read a sweep file as plain data. SpecError for another tool's file, with how to convert it."""
    try:
        document = read_sweep_file(path, {*SweepSpec.model_fields, "extends"})
    except SpecError as error:
        raise _converted(path) or error from None
    other = None if document.data.keys() & SweepSpec.model_fields.keys() else _converted(path)
    if other is not None:
        raise other
    return document


def _converted(path: Path) -> SpecError | None:
    """Return the error for a file of another tool, with the command that converts it; None for others."""
    message = converting(path) if path.is_file() else None
    return None if message is None else SpecError(message, file=str(path))


def recorded_objective(path: Path) -> ObjectiveSpec:
    """Return the objective in the sweep file of a run directory, without checking its other keys."""
    try:
        return _objective(read_text(path))
    except SpecError as error:
        raise SpecError(error.message, file=str(path), line=error.line, key=error.key) from None


@lru_cache
def _objective(text: str) -> ObjectiveSpec:
    """Return the objective in YAML text; cached, because the runs of one sweep have the same text."""
    data = _recorded(text)
    if not isinstance(data, Mapping):
        raise SpecError(f"expected the keys of a sweep, got {shown(data)}; restore the original file")
    written = {"objective": data["objective"]} if "objective" in data else {}
    return sweep_from_mapping(written, environ={}).objective


@lru_cache(maxsize=1)
def _recorded(text: str) -> Any:
    return parse_scalar(text, "sweep")


def recorded_trials(path: Path) -> frozenset[str]:
    """Return the IDs of all trials of the sweep file in a run directory; empty if a search draws them."""
    return _listed_trials(read_text(path))


@lru_cache
def _listed_trials(text: str) -> frozenset[str]:
    sweep = sweep_from_mapping(_recorded(text), environ={})
    return (
        frozenset(trial.trial_id for trial in expand(sweep).trials) if sweep.search.is_listed else frozenset()
    )


def sweep_from_mapping(
    data: Mapping[str, Any],
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    source: str = "command line",
    inputs: bool = False,
    simulated: bool = False,
) -> SweepSpec:
    """Return the sweep in plain data, with the same checks and precedence as a file.

    inputs: check that the texts and models exist. Paths are relative to the working directory. simulated: see
    `expand`.
    """
    return _parse(dict(data), Document(data, source), overrides, environ, Path.cwd(), inputs, simulated)


def _parse(
    data: dict[str, Any],
    document: Document,
    overrides: Sequence[str],
    environ: Mapping[str, str] | None,
    place: Path | None,
    inputs: bool,
    simulated: bool,
) -> SweepSpec:
    """Return the checked sweep. place: base of relative paths. inputs: check that texts and models exist."""
    learn(data, list(overrides))
    data = copy.deepcopy(data)
    settings = _settings(os.environ if environ is None else environ, overrides, _declared(data))
    origins = _apply(data, settings)
    learn(data)
    try:
        check(unwritable(data))
        try:
            sweep = SweepSpec.model_validate(data)
        except ValidationError as error:
            raise ProblemsError(problems_of(error, data, SweepSpec)) from None
        if place is not None:
            sweep = sweep.placed(place)
        return _canonical(sweep, place if inputs else None, simulated)
    except ProblemsError as error:
        raise _located(error.problems, document, origins) from None


def _canonical(sweep: SweepSpec, base_dir: Path | None, simulated: bool) -> SweepSpec:
    """Run the checks that need the whole sweep; give axes short keys and canonical values."""
    attempts = Attempts()
    for part in (resolve_axes, matching, included, declared_keys, precise_keys):
        with attempts:
            part(sweep)
    attempts.check()
    if base_dir is not None:
        check(input_problems(sweep, base_dir))
    axes = resolve_axes(sweep)
    _check_something_can_run(sweep, axes, simulated)
    canonical = {
        "axes": {axis.key: _written(axis) for axis in axes},
        "machine": described(sweep.machine, sweep.place),
    }
    return sweep.model_copy(update=canonical)


def _written(axis: Axis) -> list[Any] | AxisSpec:
    """Return an axis in the form of a sweep file, with canonical values."""
    when = {key: list(values) for key, values in axis.when.items()}
    if axis.range is not None:
        limits = axis.range
        return AxisSpec(low=limits.low, high=limits.high, log=limits.log, when=when)
    values = list(axis.values or ())
    return AxisSpec(values=values, when=when) if when else values


def _check_something_can_run(sweep: SweepSpec, axes: Sequence[Axis], simulated: bool) -> None:
    """Raise ProblemsError if all points are invalid or excluded."""
    if any(axis.range is not None for axis in axes):
        return
    invalid: list[InvalidTrial] = []
    for trial in all_points(sweep, simulated=simulated):
        if isinstance(trial, TrialSpec):
            return
        invalid.append(trial)
    if not invalid:
        raise ProblemsError.at(("exclude",), "every point is excluded; remove an entry")
    every = f"none of the {len(invalid)} points can exist; the first: " if len(invalid) > 1 else ""
    raise ProblemsError.at(place_of(sweep, invalid[0].key), every + invalid[0].reason)


def _located(problems: Iterable[Problem], document: Document, origins: Mapping[KeyPath, str]) -> SpecError:
    """Return one error for all problems, each with its file and line, or the setting that caused it."""
    errors = []
    for problem in problems:
        around = (problem.path[:length] for length in range(len(problem.path), 0, -1))
        origin = next((origins[path] for path in around if path in origins), None)
        file, line = (origin, None) if origin else document.place_of(problem.path)
        errors.append(SpecError(problem.message, file=file, line=line, key=key_text(problem.path)))
    first, rest = errors[0], errors[1:]
    text = "\n".join([first.message, *(str(error) for error in rest)])
    return SpecError(text, file=first.file, line=first.line, key=first.key)


def sweep_file(path: Path) -> Path:
    """Return the file of a shipped sweep for a bare name such as `quickstart`; any other path unchanged."""
    if path.is_file() or path.name != str(path) or path.suffix:
        return path
    package = Path(zbench.__file__).parent
    places = (package.parent / "sweeps", package / "sweeps")  # of a clone, and of a wheel
    shipped = (place / f"{path.name}.yaml" for place in places if (place / "quickstart.yaml").is_file())
    return next((file for file in shipped if file.is_file()), path)


class FlagSetting(str):
    """The `--set` text of the key that a flag such as `--timeout` sets: an error names the flag."""

    flag: str

    def __new__(cls, key: str, flag: str, value: object) -> "FlagSetting":
        setting = super().__new__(cls, f"{key}={value}")
        setting.flag = f"{flag} {value}"
        return setting


def command_line(overrides: Sequence[str], flags: Iterable[tuple[str, str, object]]) -> list[str]:
    """Return the settings of one command line; SpecError for a key that a flag sets and a `--set`, too.

    flags: key, flag and value, which is None for a flag that was not given.
    """
    settings = [FlagSetting(*flag) for flag in flags if flag[2] is not None]
    of_flags = {_path(setting.partition("=")[0]): setting.flag for setting in settings}
    for text in overrides:
        key = text.partition("=")[0].strip()
        try:
            flag = of_flags.get(_path(key))
        except ValueError:
            continue  # it is named where the settings are read
        if flag is not None:
            raise SpecError(
                f"{flag} sets the same key; leave one of the two out", file=f"--set {text}", key=key
            )
    return [*settings, *overrides]


def _declared(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping of `workload.parameters` in the data of a file; empty if it has none."""
    workload = data.get("workload")
    parameters = workload.get(PARAMETERS[-1]) if isinstance(workload, Mapping) else None
    return parameters if isinstance(parameters, Mapping) else {}


def _settings(
    environ: Mapping[str, str], options: Sequence[str], parameters: Collection[str]
) -> Iterator[tuple[str, Key, str]]:
    """Yield (origin, path, text of the value) for each setting, the highest precedence last.

    parameters: the names that `workload.parameters` declares. A variable whose name is close to a key is an
    error; other variables are ignored.
    """
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        try:
            path = _path(key, parameters)
        except ValueError as error:
            if "." in key or closest(key, {path[-1] for path in known_paths()}, cutoff=0.8):
                raise SpecError(f"{error}; rename or unset this variable", file=name) from None
            continue
        yield name, path, environ[name]
    for text in options:
        origin = text.flag if isinstance(text, FlagSetting) else f"--set {text}"
        key, sign, value = text.partition("=")
        key = key.strip()
        if not sign or not key:
            raise SpecError("expected KEY=VALUE, such as --set zero_stage=1", file=origin)
        try:
            path = _path(key, parameters)
        except ValueError as error:
            raise SpecError(str(error), file=origin, key=key) from None
        yield origin, path, value


def _path(key: str, parameters: Collection[str] = ()) -> Key:
    """Return the path of a key in a sweep file. The name of an axis may contain dots."""
    head, *rest = key.split(".")
    if head not in SweepSpec.model_fields:
        try:
            return resolve_key(key, parameters)
        except ValueError as error:
            hint = nearest(key, SweepSpec.model_fields) if "did you mean" not in str(error) else ""
            raise ValueError(str(error).split(";")[0] + hint) from None
    if not rest:
        return (head,)
    if head in SECTIONS:
        return resolve_key(key)
    if head == "axes":
        return (head, ".".join(rest))
    model = nested_model(SweepSpec.model_fields[head].annotation)
    if model is None:
        raise ValueError(f"{head} has no keys below it; write {head}=VALUE")
    if rest[0] not in model.model_fields:
        raise ValueError(f"unknown key {rest[0]!r}{nearest(rest[0], model.model_fields)} in {head}")
    return (head, *rest)


def _apply(data: dict[str, Any], settings: Iterable[tuple[str, Key, str]]) -> dict[KeyPath, str]:
    """Set each key in `data`, in place and in order. Return path -> origin, for error messages."""
    origins: dict[KeyPath, str] = {}
    for origin, path, text in settings:
        value = parse_scalar(text, origin)
        if path == ("engine",) and isinstance(value, str):
            path = ("engine", "engine")
        for target, target_value in _targets(data, path, value):
            if target[0] in data and target[0] == "machine":
                data["machine"] = opened(data["machine"])
            _check_blocks(data, target, origin)
            assign(data, target, target_value)
            origins[target] = origin
    return origins


def _targets(data: Mapping[str, Any], path: Key, value: Any) -> Iterator[tuple[Key, Any]]:
    """Yield (path, value) that a setting sets: its own path, and the axis of that key, if any, as [value]."""
    if path[0] == "axes" and len(path) == 2:
        yield ("axes", _written_name(data, path[1]) or path[1]), value
        return
    yield path, value
    if path[0] in SECTIONS:
        name = _written_name(data, ".".join(path))
        if name is not None:
            yield ("axes", name), [value]


def _written_name(data: Mapping[str, Any], key: str) -> str | None:
    """Return the name in the file of the axis of `key`, or None if it has no such axis."""
    axes = data.get("axes")
    declared = _declared(data)
    path = _resolved(key, declared)
    if path is None or not isinstance(axes, Mapping):
        return None
    return next((str(name) for name in axes if _resolved(str(name), declared) == path), None)


def _resolved(key: str, parameters: Collection[str]) -> Key | None:
    try:
        return resolve_key(key, parameters)
    except ValueError:
        return None


def _check_blocks(data: Mapping[str, Any], path: Key, origin: str) -> None:
    """Raise SpecError if a parent of `path` is not a mapping."""
    block: Any = data
    for depth, part in enumerate(path[:-1]):
        block = block.get(part, {})
        if not isinstance(block, dict):
            message = "is not a mapping in the file, so nothing can be set in it; correct the file"
            raise SpecError(message, file=origin, key=key_text(path[: depth + 1]))
