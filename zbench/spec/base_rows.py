"""The configurations that a trial is compared with: a command's reference, and the base row of the sweep.

The reference has the trial's own values of the keys that change what is trained, and the file's values of all
other keys. Keys that `verify.same_training` declares are among the others, so a row that differs along them
is judged. The base row has the file's values of all keys (or those of `verify.against`). A row that differs
from it along another axis trains something else, or is wrong: that difference is told, and not judged.

A model's base row has another size of micro-batches and the same samples in each step
(`workload.global_batch_size`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from zbench.spec.keys import PARAMETERS, Key, resolve_key, short_name, value_at
from zbench.spec.problems import ProblemsError
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import NOT_IDENTITY, InvalidTrial, TrialSpec
from zbench.spec.workload import SHAPING

_OF_A_STEP = {"micro_batch_size", "gradient_accumulation_steps", "backwards_per_step"}
"""Keys that, with `global_batch_size`, divide the samples of a step and change none of them."""
Resolve = Callable[[Mapping[Key, Any]], TrialSpec | InvalidTrial]


def with_comparisons(
    trial: TrialSpec, values: Mapping[Key, Any], sweep: SweepSpec, resolve: Resolve
) -> TrialSpec | InvalidTrial:
    """Return a command's trial with `verify.against` and `base_row`: what its two comparisons have instead.

    values: the keys of its point. resolve: returns the trial of a point.
    """
    named = sweep.verify.against
    if named is not None:
        try:
            reference = trial.held_against()
        except ValidationError as error:
            detail = error.errors()[0]
            reason = f"verify.against: {detail['loc'][-1]}: {detail['msg']}; correct it"
            return trial.invalid("verify.against", reason)
        except ValueError as error:
            return trial.invalid("verify.against", f"verify.against: {error}")
    if sweep.verify.mode == "off" or trial.workload.checkpoint is None:
        return trial
    if named is None:
        declared = declared_keys(sweep)
        own = {path: value for path, value in values.items() if _shapes(path) and path not in declared}
        base = resolve(own)
        if isinstance(base, InvalidTrial):
            reason = f"the run to compare it with is invalid: {base.reason}; set verify.against"
            return trial.invalid(base.key, reason)
        reference = base
        verify = trial.verify.model_copy(update={"against": _differing(trial, base)})
        trial = trial.model_copy(update={"verify": verify})
    row = resolve({_path(key, sweep): value for key, value in (named or {}).items()})
    if isinstance(row, InvalidTrial) or not _differing(reference, row):
        return trial
    return trial.model_copy(update={"base_row": _differing(trial, row)})


def with_other_micro_batches(trial: TrialSpec, sizes: Iterable[int]) -> TrialSpec:
    """Return a model's trial with `base_row`: the row that has the first of these sizes of micro-batches.

    Both have the same samples in each step. Without a global batch, or for the row itself, there is none.
    """
    workload, counted = trial.workload, trial.engine.accumulation_mode == "micro_steps"
    total, ranks = workload.global_batch_size, trial.run.world_size
    if total is None or trial.verify.mode != "full":
        return trial
    first = next((size for size in sizes if total % (size * ranks) == 0), workload.micro_batch_size)
    if first == workload.micro_batch_size:
        return trial
    key = "engine.gradient_accumulation_steps" if counted else "workload.backwards_per_step"
    row = {"workload.micro_batch_size": first, key: total // (first * ranks)}
    return trial.model_copy(update={"base_row": row})


def declared_keys(sweep: SweepSpec) -> set[Key]:
    """Return the keys that must not change what is trained. ProblemsError for an unknown key."""
    return _keys(sweep, "same_training", sweep.verify.same_training)


def precise_keys(sweep: SweepSpec) -> set[Key]:
    """Return the keys of the more precise run. ProblemsError for an unknown key."""
    return _keys(sweep, "precise", sweep.verify.precise or ())


def _keys(sweep: SweepSpec, section: str, names: Iterable[str]) -> set[Key]:
    try:
        return {_path(name, sweep) for name in names}
    except ValueError as error:
        raise ProblemsError.at(("verify", section), str(error)) from None


def rows_apart(trial: TrialSpec) -> dict[str, tuple[Any, Any]]:
    """Return the axes along which a command's trial may train something else than the base row.

    The values are those of the trial and of the base row.
    """
    row = trial.compared_row()
    if row is None:
        return {}
    reference = trial.held_against()
    ours, theirs = _differing(row, reference), _differing(reference, row)
    named = ours.keys() & trial.axes.keys() or ours.keys()
    return {key: (ours[key], theirs[key]) for key in ours if key in named}


def must_train_the_same(trial: TrialSpec, axes: Iterable[str]) -> bool:
    """Return whether rows that differ along these axes alone have the same samples in each step."""
    return trial.workload.global_batch_size is not None and set(axes) <= _OF_A_STEP


def _path(key: str, sweep: SweepSpec) -> Key:
    return resolve_key(key, sweep.workload.parameters)


def _shapes(path: Key) -> bool:
    """Return whether a key may change what is trained."""
    return path[1] in SHAPING if path[0] == "engine" else True


def _differing(trial: TrialSpec, other: TrialSpec) -> dict[str, Any]:
    """Return short name -> the other's value of each key and parameter that differs."""
    config, theirs = trial.config(), other.config()
    sections: list[Key] = [("workload",), ("run",), ("engine",), ("engine", "optimizer"), PARAMETERS]
    paths: list[Key] = [(*section, key) for section in sections for key in value_at(config, section)]
    kept = (path for path in paths if path not in sections and path[-1] not in NOT_IDENTITY)
    values = ((path, value_at(config, path), value_at(theirs, path)) for path in kept)
    return {short_name(path): value for path, own, value in values if repr(own) != repr(value)}  # 1, true
