"""A sweep's points made one by one, nothing shared between them: what `expand` must agree with."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from zbench.errors import SpecError
from zbench.spec.axes import Axis, included, matching, resolve_axes
from zbench.spec.batch import with_accumulation
from zbench.spec.combinations import conflict
from zbench.spec.command import SHAPING
from zbench.spec.ds_config import with_ds_config
from zbench.spec.environments import with_environment
from zbench.spec.expand import Expansion
from zbench.spec.keys import Path, short_name, value_at
from zbench.spec.point import base_config, configured, matches, without_nulls
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec, config_id

Values = Mapping[Path, Any]


def expand_plainly(sweep: SweepSpec) -> Expansion:
    """Return the points of a sweep whose search is a grid."""
    found, seen, excludes = Expansion([], []), set(), list(matching(sweep))
    used: set[int] = set()
    excluded = duplicates = 0
    for values, is_extra in _all_values(sweep):
        config = configured(base_config(sweep), values)
        matched = {n for n, entry in enumerate(excludes) if not is_extra and matches(config, entry)}
        used |= matched
        excluded += bool(matched)
        if matched:
            continue
        trial = trial_plainly(sweep, values, is_extra=is_extra)
        duplicates += trial.trial_id in seen
        if trial.trial_id not in seen:
            (found.trials if isinstance(trial, TrialSpec) else found.invalid).append(trial)  # type: ignore[arg-type]
        seen.add(trial.trial_id)
    unused = [n for n in range(len(excludes)) if n not in used]
    return Expansion(found.trials, found.invalid, duplicates, excluded, unused)


def trial_plainly(sweep: SweepSpec, values: Values, *, is_extra: bool = False) -> TrialSpec | InvalidTrial:
    """Return the trial of some values."""
    config = configured(base_config(sweep), dict(values))
    axes = resolve_axes(sweep)
    shown = {axis.key: value_at(config, axis.path) for axis in axes if is_extra or axis.path in values}
    shown |= {short_name(path): value for path, value in values.items()}
    shown = {key: without_nulls(value) for key, value in shown.items()}
    trial = _trial(sweep, config, shown, values)
    if isinstance(trial, InvalidTrial) or trial.workload.command is None or trial.verify.against is not None:
        return trial
    if trial.verify.mode == "off" or trial.workload.checkpoint is None:
        return trial
    same = {path: value for path, value in values.items() if path[0] != "engine" or path[1] in SHAPING}
    run = _trial(sweep, configured(base_config(sweep), same), {}, same)
    if isinstance(run, InvalidTrial):
        reason = f"the run that it is held against cannot exist: {run.reason}; set verify.against"
        return InvalidTrial(trial.axes, trial.config(), reason, trial.trial_id, run.key)
    mine, theirs = trial.config()["engine"], run.config()["engine"]
    other = {key: theirs.get(key) for key in mine | theirs if mine.get(key) != theirs.get(key)}
    return trial.model_copy(update={"verify": trial.verify.model_copy(update={"against": other})})


def _trial(
    sweep: SweepSpec, config: dict[str, Any], axes: dict[str, Any], values: Values
) -> TrialSpec | InvalidTrial:
    key = "engine.engine_python"
    try:
        config = with_environment(config, sweep.environments, sweep.place)
        key = "engine.ds_config"
        config = with_ds_config(config, values.keys(), sweep.place)
        key = "workload.global_batch_size"
        config = with_accumulation(config)
        key = ""
        trial = TrialSpec.model_validate({**config, "axes": axes})
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, detail['loc']))}: {detail['msg'].removeprefix('Value error, ')}"
        return InvalidTrial(axes, config, reason, config_id(config))
    except ValueError as error:
        if isinstance(error, SpecError) and ("engine", "ds_config") not in values:
            raise
        return InvalidTrial(axes, config, str(error), config_id(config), key)
    found = conflict(trial.engine, trial.run, trial.workload, sweep.place)
    return trial if found is None else InvalidTrial(axes, trial.config(), found[1], trial.trial_id, found[0])


def _all_values(sweep: SweepSpec) -> Iterator[tuple[dict[Path, Any], bool]]:
    """Yield the values of every point, and whether it was included."""
    axes, extra = resolve_axes(sweep), included(sweep)
    if axes or not extra:
        yield from ((values, False) for values in _product(axes, {}, {}))
    yield from ((values, True) for values in extra)


def _product(axes: list[Axis], point: dict[str, Any], values: dict[Path, Any]) -> Iterator[dict[Path, Any]]:
    if not axes:
        yield values
        return
    first, *rest = axes
    for value in (first.values or ()) if first.applies(point) else ():
        yield from _product(rest, {**point, first.key: value}, {**values, first.path: value})
    if not first.applies(point):
        yield from _product(rest, point, values)
