"""Resolves the axes of a sweep: keys become paths, values become canonical, conditions are checked."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from zbench.spec.base import SpecModel
from zbench.spec.keys import (
    PARAMETERS,
    Key,
    canonical_value,
    holder,
    is_parameter,
    resolve_key,
    short_name,
    value_at,
)
from zbench.spec.problems import Attempts, KeyPath, Problem, ProblemsError, problems_of, shown
from zbench.spec.sweep import AxisSpec, SweepSpec
from zbench.spec.trial import NOT_IDENTITY

Point = Mapping[str, Any]
MAX_POINTS = 100_000


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The numbers from `low` to `high`, both included; only integers if `integer`."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One varied key: canonical, distinct `values`, or a `range`; `when` maps earlier axes to values."""

    key: str
    path: Key
    values: tuple[Any, ...] | None
    range: ValueRange | None = None
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def applies(self, point: Point) -> bool:
        """Return whether this axis varies at a point that already has the values of the earlier axes."""
        return all(key in point and point[key] in values for key, values in self.when.items())

    @property
    def parameters(self) -> set[str]:
        """Return which of `workload.parameters` this axis sets."""
        if self.path == PARAMETERS:
            return {name for value in self.values or () for name in value}
        return {self.path[-1]} if is_parameter(self.path) else set()

    def value_in(self, config: Mapping[str, Any]) -> Any:
        """Return the value of this axis in a configuration.

        Of an axis of mappings, that is the first mapping whose parameters the configuration has.
        """
        value = value_at(config, self.path)
        mappings = self.values or () if self.path == PARAMETERS else ()
        return next((mapping for mapping in mappings if mapping.items() <= value.items()), value)


def resolve_axes(sweep: SweepSpec) -> list[Axis]:
    """Return the axes in the order of the file. ProblemsError lists every mistake."""
    axes: list[Axis] = []
    attempts = Attempts()
    for name, written in sweep.axes.items():
        with attempts:
            axis = _resolve(name, written, axes, sweep)
            _check_parameters(axis, axes, ("axes", name), sweep)
            axes.append(axis)
    attempts.check()
    count = math.prod(len(axis.values) for axis in axes if axis.values is not None)
    if count > MAX_POINTS and sweep.search.is_listed:
        message = f"the product has {count:,} points, more than {MAX_POINTS:,}"
        raise ProblemsError.at(("axes",), f"{message}; shorten an axis or set search.method")
    return axes


def _resolve(name: str, written: list[Any] | AxisSpec, earlier: Sequence[Axis], sweep: SweepSpec) -> Axis:
    place: KeyPath = ("axes", name)
    path = _path(name, place, sweep)
    if any(axis.path == path for axis in earlier):
        raise ProblemsError.at(place, f"this axis is given twice ({'.'.join(path)}); keep one of them")
    if path[0] == "run" and path[-1] in NOT_IDENTITY:
        raise ProblemsError.at(
            place, f"{path[-1]} affects no result and cannot be an axis; set it under `run:`"
        )
    if isinstance(written, list):
        return Axis(short_name(path), path, _values(path, written, place))
    when = _conditions(written.when, earlier, place, sweep)
    if written.values is not None:
        return Axis(short_name(path), path, _values(path, written.values, (*place, "values")), None, when)
    if sweep.search.is_listed:
        raise ProblemsError.at(
            place, "a range has no grid; list the values, or set search.method to random, tpe or nsga2"
        )
    return Axis(short_name(path), path, None, _range(path, written, place), when)


def _check_parameters(axis: Axis, earlier: Sequence[Axis], place: KeyPath, sweep: SweepSpec) -> None:
    """Raise ProblemsError if an axis sets an undeclared parameter, or a parameter of an earlier axis."""
    for name in sorted(axis.parameters):
        _path(f"parameters.{name}", place, sweep)
        other = next((other.key for other in earlier if name in other.parameters), None)
        if other is not None:
            raise ProblemsError.at(place, f"axes.{other} sets {name}, too; leave it out of one of the two")


def _values(path: Key, written: Sequence[Any], place: KeyPath) -> tuple[Any, ...]:
    if not written:
        raise ProblemsError.at(place, "this axis is empty; give it a value or remove it")
    attempts = Attempts()
    distinct: dict[str, Any] = {}
    for index, value in enumerate(written):
        with attempts:
            canonical = checked_value(path, value, (*place, index))
            identity = json.dumps(canonical, sort_keys=True, default=str)
            if identity in distinct:
                message = f"{shown(value)} is on this axis twice; remove one"
                raise ProblemsError.at((*place, index), message)
            distinct[identity] = canonical
    attempts.check()
    return tuple(distinct.values())


def checked_value(path: Key, value: Any, place: KeyPath) -> Any:
    """Return the canonical form of `value`. ProblemsError at `place` if the key `path` cannot have it."""
    if is_parameter(path):
        try:
            return checked_value(PARAMETERS, {path[-1]: value}, place)[path[-1]]
        except ProblemsError as error:
            raise ProblemsError(Problem(place, problem.message) for problem in error.problems) from None
    try:
        return canonical_value(path, value)
    except ValidationError as error:
        problems = problems_of(error, {path[-1]: value}, holder(path) or SpecModel)
        raise ProblemsError(Problem((*place, *p.path[1:]), p.message) for p in problems) from None


def _conditions(
    when: Mapping[str, Any], earlier: Sequence[Axis], place: KeyPath, sweep: SweepSpec
) -> dict[str, tuple[Any, ...]]:
    conditions: dict[str, tuple[Any, ...]] = {}
    for name, condition in when.items():
        here = (*place, "when", name)
        path = _path(name, here, sweep)
        axis = next((axis for axis in earlier if axis.path == path), None)
        if axis is None:
            raise ProblemsError.at(here, "not an earlier axis; move that axis above this one")
        values = condition if isinstance(condition, list) else [condition]
        conditions[axis.key] = tuple(checked_value(path, value, here) for value in values)
        absent = [value for value in conditions[axis.key] if value not in (axis.values or [value])]
        if absent:
            choices = list(axis.values or ())
            raise ProblemsError.at(here, f"{shown(absent[0])} is not a value of that axis; it has {choices}")
    return conditions


def _range(path: Key, written: AxisSpec, place: KeyPath) -> ValueRange:
    low = checked_value(path, written.low, (*place, "low"))
    high = checked_value(path, written.high, (*place, "high"))
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        raise ProblemsError.at(place, "this key is not a number, so it has no range; list its values")
    if low >= high:
        message = f"expected low below high, got {low} and {high}; swap them or list the value"
        raise ProblemsError.at(place, message)
    if written.log and low <= 0:
        raise ProblemsError.at((*place, "low"), f"a logarithmic range begins above 0, got {low}; raise it")
    return ValueRange(low, high, written.log, isinstance(low, int) and isinstance(high, int))


def matching(sweep: SweepSpec) -> list[dict[Key, tuple[Any, ...]]]:
    """Return each `exclude` entry as path -> matching values. ProblemsError lists every mistake."""
    return _entries("exclude", sweep, sweep.exclude, _matching_values)


def included(sweep: SweepSpec) -> list[dict[Key, Any]]:
    """Return each `include` entry as path -> canonical value. ProblemsError lists every mistake."""
    return _entries("include", sweep, sweep.include, checked_value)


def _entries(
    section: str,
    sweep: SweepSpec,
    written: Sequence[Mapping[str, Any]],
    read: Callable[[Key, Any, KeyPath], Any],
) -> list[dict[Key, Any]]:
    entries: list[dict[Key, Any]] = []
    attempts = Attempts()
    for index, entry in enumerate(written):
        with attempts:
            if section == "exclude" and not entry:
                raise ProblemsError.at(
                    (section, index), "an empty entry would exclude every point; remove it"
                )
        entries.append({})
        for name, value in _without_mappings(entry):
            place = (section, index, name)
            with attempts:
                path = _path(name, place, sweep)
                entries[-1][path] = read(path, value, place)
    attempts.check()
    return entries


def _without_mappings(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of an entry, with a key for each parameter in a mapping of parameters."""
    for name, value in entry.items():
        if name in ("parameters", ".".join(PARAMETERS)) and isinstance(value, dict):
            yield from ((f"{name}.{parameter}", inner) for parameter, inner in value.items())
        else:
            yield name, value


def _matching_values(path: Key, pattern: Any, place: KeyPath) -> tuple[Any, ...]:
    if isinstance(pattern, list):
        try:
            return (canonical_value(path, pattern),)  # a key whose value is a list, such as betas
        except ValidationError:
            return tuple(checked_value(path, value, (*place, i)) for i, value in enumerate(pattern))
    return (checked_value(path, pattern, place),)


def _path(name: str, place: KeyPath, sweep: SweepSpec) -> Key:
    """Return the path of the key `name`. ProblemsError at `place` if there is no such key."""
    declared = sweep.workload.parameters
    try:
        path = resolve_key(name, declared)
    except ValueError as error:
        declare = f"; declare a flag of the script as workload.parameters: {{{name}: VALUE}}"
        remedy = declare if sweep.workload.command is not None and name.isidentifier() else ""
        raise ProblemsError.at(place, f"{error}{remedy}") from None
    if is_parameter(path) and path[-1] not in declared:
        remedy = f"give its base value as workload.parameters: {{{path[-1]}: VALUE}}"
        raise ProblemsError.at(place, f"{path[-1]} is not declared; {remedy}")
    return path
