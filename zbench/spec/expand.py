"""From a sweep to its trials: the product of the axes, less `exclude`, plus `include`, each point once."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from zbench.errors import SpecError
from zbench.spec.axes import Axis, Point, included, matching, resolve_axes
from zbench.spec.batch import KEY as BATCH_KEY
from zbench.spec.batch import with_accumulation
from zbench.spec.combinations import conflict
from zbench.spec.command import SHAPING
from zbench.spec.covering import covering
from zbench.spec.ds_config import KEY as DS_KEY
from zbench.spec.ds_config import with_ds_config
from zbench.spec.environments import KEY as ENVIRONMENT_KEY
from zbench.spec.environments import with_environment
from zbench.spec.keys import Path, assign, short_name, value_at
from zbench.spec.problems import Problem, ProblemsError
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec, config_id

MAX_POINTS = 100_000


@dataclass(frozen=True, slots=True)
class InvalidTrial:
    """A point that cannot exist, and why; it is recorded with outcome `invalid` and never launched.

    `key` is the one to change, as `engine.zero_stage`.
    """

    axes: dict[str, Any]
    config: dict[str, Any]
    reason: str
    trial_id: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The points of a sweep: those that can run, and those that cannot exist. Order is the file's."""

    trials: list[TrialSpec]
    invalid: list[InvalidTrial]
    duplicates: int = 0
    excluded: int = 0
    unused: list[int] = field(default_factory=list)
    """Indices of `exclude` entries that match no point."""


def expand(sweep: SweepSpec) -> Expansion:
    """Return every point of a sweep whose axes are lists; SpecError for mistakes and for ranges."""
    try:
        axes = checked_axes(sweep)
        excludes = list(matching(sweep))
        extra = included(sweep)
    except ProblemsError as error:
        raise SpecError(str(error)) from None
    if any(axis.range is not None for axis in axes):
        raise SpecError("a range has no list of points; a search draws them", key="axes")
    found = Expansion([], [])
    seen: set[str] = set()
    excluded = duplicates = 0
    used: set[int] = set()
    for trial in _walk(sweep, axes, excludes, extra, used):
        trial_id = None if trial is None else trial.trial_id
        if trial is None or trial_id is None:
            excluded += 1
        elif trial_id in seen:
            duplicates += 1
        elif isinstance(trial, TrialSpec):
            found.trials.append(trial)
        else:
            found.invalid.append(trial)
        seen.update([] if trial_id is None else [trial_id])
    unused = [index for index in range(len(excludes)) if index not in used]
    if sweep.search.method == "covering":
        chosen = covering([trial.axes for trial in found.trials], sweep.search.strength, sweep.search.seed)
        return Expansion([found.trials[index] for index in chosen], [], duplicates, excluded, unused)
    return Expansion(found.trials, found.invalid, duplicates, excluded, unused)


def all_points(sweep: SweepSpec) -> Iterator[TrialSpec | InvalidTrial]:
    """Yield the points of a checked sweep one by one, those excluded left out, duplicates not."""
    points = _walk(sweep, checked_axes(sweep), list(matching(sweep)), included(sweep), set())
    return (trial for trial in points if trial is not None)


def _walk(
    sweep: SweepSpec,
    axes: Sequence[Axis],
    excludes: Sequence[dict[Path, tuple[Any, ...]]],
    extra: Sequence[dict[Path, Any]],
    used: set[int],
) -> Iterator[TrialSpec | InvalidTrial | None]:
    """Yield every point in order, None for one that is excluded. used: gets entries that match a point."""
    base = base_config(sweep)
    for values, is_extra in _configurations(axes, extra):
        config = configured(base, values)
        matched = {n for n, entry in enumerate(excludes) if not is_extra and _matches(config, entry)}
        used |= matched
        if matched:
            yield None
        else:
            shown_axes = _shown_axes(config, values, axes, is_extra)
            yield _held(sweep, values, _trial(sweep, base, config, shown_axes, values))


def checked_axes(sweep: SweepSpec) -> list[Axis]:
    """Return the axes of a sweep; ProblemsError where one is mistaken or their product is too large."""
    axes = resolve_axes(sweep)
    count = math.prod(len(axis.values) for axis in axes if axis.values is not None)
    if count > MAX_POINTS and sweep.search.is_listed:
        message = f"the product has {count:,} points, more than {MAX_POINTS:,}"
        message += "; shorten an axis or set search.method"
        raise ProblemsError([Problem(("axes",), message)])
    return axes


def trial_at(sweep: SweepSpec, point: Point) -> TrialSpec | InvalidTrial:
    """Return the trial at one point (axis key -> value), for a search that draws its own points."""
    axes = {axis.key: axis for axis in resolve_axes(sweep)}
    values = {axes[key].path: value for key, value in point.items()}
    base = base_config(sweep)
    config = configured(base, values)
    shown = _shown_axes(config, values, list(axes.values()), False)
    return _held(sweep, values, _trial(sweep, base, config, shown, values))


def is_excluded(sweep: SweepSpec, trial: TrialSpec | InvalidTrial) -> bool:
    """Tell whether an `exclude` entry matches a trial."""
    config = trial.config() if isinstance(trial, TrialSpec) else trial.config
    return any(_matches(config, entry) for entry in matching(sweep))


def base_config(sweep: SweepSpec) -> dict[str, Any]:
    """Return the configuration that axes vary, as plain JSON values."""
    config: dict[str, Any] = sweep.model_dump(mode="json", include={"workload", "run", "engine", "verify"})
    return config


def configured(base: dict[str, Any], values: dict[Path, Any]) -> dict[str, Any]:
    """Return `base` with some keys set; blocks without one of these are shared with it."""
    config = dict(base)
    for path, value in values.items():
        block = config
        for part in path[:-1]:
            if not isinstance(block.get(part), dict):
                break
            block[part] = dict(block[part])
            block = block[part]
        assign(config, path, value)
    return config


def _configurations(
    axes: Sequence[Axis], extra: Sequence[dict[Path, Any]]
) -> Iterator[tuple[dict[Path, Any], bool]]:
    """Yield path -> value of each point of the product, then of each included one (marked True)."""
    paths = {axis.key: axis.path for axis in axes}
    if axes or not extra:
        for point in _points(axes, {}):
            yield {paths[key]: value for key, value in point.items()}, False
    for values in extra:
        yield values, True


def _points(axes: Sequence[Axis], point: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the product of the axes that apply, the last axis varying fastest."""
    if not axes:
        yield point
        return
    first, rest = axes[0], axes[1:]
    if not first.applies(point):
        yield from _points(rest, point)
        return
    for value in first.values or ():
        yield from _points(rest, {**point, first.key: value})


def _matches(config: dict[str, Any], entry: dict[Path, tuple[Any, ...]]) -> bool:
    return all(value_at(config, path) in values for path, values in entry.items())


def _shown_axes(
    config: dict[str, Any], values: dict[Path, Any], axes: Sequence[Axis], is_extra: bool
) -> dict[str, Any]:
    """Return what a table shows of a point: the varied keys, and for an included point every axis too."""
    shown = {axis.key: value_at(config, axis.path) for axis in axes if is_extra or axis.path in values}
    shown |= {short_name(path): value for path, value in values.items()}
    return {key: _without_nulls(value) for key, value in shown.items()}


def _without_nulls(value: Any) -> Any:
    """Return a block without the keys that say nothing, such as those a parameter group inherits."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}


def _held(
    sweep: SweepSpec, values: dict[Path, Any], trial: TrialSpec | InvalidTrial
) -> TrialSpec | InvalidTrial:
    """Return a command's trial with the engine keys of the run that it is held against; others as they are.

    That run is the file's own configuration with the trial's values of whatever changes what is trained.
    """
    if isinstance(trial, InvalidTrial) or trial.workload.command is None:
        return trial
    if trial.verify.against is not None:
        try:
            trial.held_against()
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            reason = f"verify.against: {detail['loc'][-1]}: {detail['msg']}; name keys of engine"
            return InvalidTrial(trial.axes, trial.config(), reason, trial.trial_id, "verify.against")
        return trial
    if trial.verify.mode == "off" or trial.workload.checkpoint is None:
        return trial
    same = {path: value for path, value in values.items() if path[0] != "engine" or path[1] in SHAPING}
    base = base_config(sweep)
    run = _trial(sweep, base, configured(base, same), {}, same)
    if isinstance(run, InvalidTrial):
        reason = f"the run that it is held against cannot exist: {run.reason}; set verify.against"
        return InvalidTrial(trial.axes, trial.config(), reason, trial.trial_id, run.key)
    mine, theirs = trial.config()["engine"], run.config()["engine"]
    other = {key: theirs.get(key) for key in mine | theirs if mine.get(key) != theirs.get(key)}
    return trial.model_copy(update={"verify": trial.verify.model_copy(update={"against": other})})


def _trial(
    sweep: SweepSpec,
    base: dict[str, Any],
    config: dict[str, Any],
    axes: dict[str, Any],
    varied: Collection[Path],
) -> TrialSpec | InvalidTrial:
    """Return the trial of a configuration. base: that of the sweep itself, whose blocks trials share."""
    try:
        config = with_environment(config, sweep.environments, sweep.place)
    except ValueError as error:
        return InvalidTrial(axes, config, str(error), config_id(config), ENVIRONMENT_KEY)
    try:
        config = with_ds_config(config, varied, sweep.place)
    except ValueError as error:
        if isinstance(error, SpecError) and tuple(DS_KEY.split(".")) not in varied:
            raise  # a file that cannot be read is no point that cannot exist, unless others are tried
        return InvalidTrial(axes, config, str(error), config_id(config), DS_KEY)
    try:
        config = with_accumulation(config)
    except ValueError as error:
        return InvalidTrial(axes, config, str(error), config_id(config), BATCH_KEY)
    try:
        blocks = {key: getattr(sweep, key) if block == base[key] else block for key, block in config.items()}
        trial = TrialSpec.model_validate({**blocks, "axes": axes})
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        reason = (
            f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg'].removeprefix('Value error, ')}"
        )
        return InvalidTrial(axes, config, reason, config_id(config))
    found = conflict(trial.engine, trial.run, trial.workload, sweep.place)
    if found is None:
        return trial
    key, reason = found
    return InvalidTrial(axes, trial.config(), reason, trial.trial_id, key)
