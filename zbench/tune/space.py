"""The space of a search: axes of a sweep as a conditional Optuna space, and points of it as trials.

A point maps axis keys to values and holds only the axes that apply there: an offload ratio means nothing
where nothing is offloaded, so points that differ in it alone are one point, measured once.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from zbench.spec.axes import Axis
from zbench.spec.dependencies import dependency_of
from zbench.spec.expand import Points, base_config, expand
from zbench.spec.keys import Path, value_at
from zbench.spec.sweep import SearchSpec, SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec

Point = dict[str, Any]
MAX_LISTED = 20_000
"""Spaces with more points than this are drawn from and never written out."""

_NO_SCALE = {("engine", "zero_stage")}
"""Numbers that name kinds; a model of them must not interpolate."""


def point_key(point: Mapping[str, Any]) -> str:
    """Return the identity of a point, whatever the order of its keys."""
    return json.dumps(point, sort_keys=True, separators=(",", ":"), default=str)


class Space:
    """The points of one sweep. `axes` are ordered so that each comes after those it depends on."""

    def __init__(self, sweep: SweepSpec) -> None:
        self.sweep = sweep
        self._base = base_config(sweep)
        self._points = Points(sweep)
        self._by_path = {axis.path: axis for axis in self._points.axes}
        self.axes = tuple(_parents_first(self._points.axes, self._by_path))
        self._distributions = {axis.key: _distribution(axis) for axis in self.axes}
        self._trials: dict[str, TrialSpec | InvalidTrial] = {}
        self._listed: list[Point] | None = None
        self.included = self._included()

    def trial(self, point: Point) -> TrialSpec | InvalidTrial:
        """Return the trial at a point; an InvalidTrial with the reason where it cannot be or is excluded."""
        key = point_key(point)
        if key not in self._trials:
            trial = self._points.trial(point)
            if isinstance(trial, TrialSpec) and self._points.excluding(point):
                trial = InvalidTrial(trial.axes, trial.config(), "excluded by the sweep file", trial.trial_id)
            self._trials[key] = trial
        return self._trials[key]

    def can_run(self, point: Point) -> bool:
        """Whether the trial at this point can exist and is not excluded."""
        return isinstance(self.trial(point), TrialSpec)

    def points(self) -> list[Point] | None:
        """Return every distinct point that can run, in the file's order; None for a range or too many."""
        if self._listed is None and self.is_listable:
            self._listed = [point for point in self._walk(0, {}) if self.can_run(point)]
        return self._listed

    @property
    def is_listable(self) -> bool:
        """Whether the points can be written out one by one."""
        sizes = [len(axis.values or ()) for axis in self.axes]
        return all(sizes) and math.prod(sizes) <= MAX_LISTED  # of a range, which has no values, the size is 0

    def canonical(self, values: Mapping[str, Any]) -> Point:
        """Return the point that these axis values mean: axes that do not act are left at one fixed value."""
        point: Point = {}
        for axis in self.axes:
            if not axis.applies(point):
                continue
            if axis.key in values and self._acts(axis, point):
                point[axis.key] = values[axis.key]
            elif axis.key in values:
                self._settle(axis, point)
        return point

    def point_of(self, config: Mapping[str, Any]) -> Point:
        """Return the point at which a configuration would lie, if the rest of it is this sweep's."""
        return self.canonical({axis.key: value_at(config, axis.path) for axis in self.axes})

    def suggest(self, trial: Trial) -> Point:
        """Draw a point; only axes that act are asked for."""
        point: Point = {}
        for axis in self.axes:
            if not axis.applies(point):
                continue
            if self._acts(axis, point):
                point[axis.key] = decoded(axis, _drawn(trial, axis.key, self._distributions[axis.key]))
            else:
                self._settle(axis, point)
        return point

    def encode(self, point: Point) -> tuple[dict[str, Any], dict[str, BaseDistribution]] | None:
        """Return a point as Optuna's parameters and distributions; None if it is not in this space."""
        params: dict[str, Any] = {}
        if point.keys() - self._distributions.keys():
            return None
        for axis in self.axes:
            if not axis.applies(point) or not self._acts(axis, point):
                continue
            value = encoded(axis, point[axis.key]) if axis.key in point else None
            if value is None:
                return None
            params[axis.key] = value
        return params, {key: self._distributions[key] for key in params}

    def base_point(self) -> Point:
        """Return the point nearest to the file's own configuration."""
        return self.canonical({a.key: _nearest(a, value_at(self._base, a.path)) for a in self.axes})

    def _included(self) -> list[Point]:
        """Return the points of `include`, which need not lie on the axes."""
        alone = {"axes": {}, "exclude": [], "search": SearchSpec()}
        trials = expand(self.sweep.model_copy(update=alone)).trials if self.sweep.include else []
        for trial in trials:
            self._trials[point_key(trial.axes)] = trial
        return [trial.axes for trial in trials]

    def _walk(self, depth: int, point: Point) -> Iterator[Point]:
        if depth == len(self.axes):
            yield point
            return
        axis = self.axes[depth]
        if not axis.applies(point):
            yield from self._walk(depth + 1, point)
        elif not self._acts(axis, point):
            settled = dict(point)
            self._settle(axis, settled)
            yield from self._walk(depth + 1, settled)
        else:
            for value in axis.values or ():
                yield from self._walk(depth + 1, {**point, axis.key: value})

    def _acts(self, axis: Axis, point: Mapping[str, Any]) -> bool:
        """Whether this axis changes anything at a point that already holds what it depends on."""
        need = dependency_of(axis.path)
        return need is None or self._value(need.on, point) in need.values

    def _value(self, path: Path, point: Mapping[str, Any]) -> Any:
        axis = self._by_path.get(path)
        return point[axis.key] if axis is not None and axis.key in point else value_at(self._base, path)

    def _settle(self, axis: Axis, point: Point) -> None:
        """Give an axis without effect the file's value, or its first one if the file's is not on the axis."""
        if axis.values is not None and value_at(self._base, axis.path) not in axis.values:
            point[axis.key] = axis.values[0]


def is_scaled(axis: Axis) -> bool:
    """Whether the values of an axis lie on a number line: sizes and counts, but no kinds or switches."""
    values = axis.values or ()
    numeric = all(isinstance(value, int | float) for value in values)  # switches, too, but they have only two
    return numeric and len(values) > 2 and axis.path not in _NO_SCALE


def encoded(axis: Axis, value: Any) -> Any:
    """Return a value as its Optuna parameter: its rank on a scale, else itself; None if the axis lacks it."""
    if axis.range is not None:
        return value if axis.range.low <= value <= axis.range.high else None
    if value not in (axis.values or ()):
        return None
    return sorted(axis.values or ()).index(value) if is_scaled(axis) else _choice(value)


def decoded(axis: Axis, value: Any) -> Any:
    """Return the axis value of an Optuna parameter."""
    if axis.range is not None:
        return value
    values = axis.values or ()
    if is_scaled(axis):
        return sorted(values)[value]
    return next(v for v in values if _choice(v) == value and type(_choice(v)) is type(value))


def _distribution(axis: Axis) -> BaseDistribution:
    limits = axis.range
    if limits is None:
        values = axis.values or ()
        if is_scaled(
            axis
        ):  # sizes are listed by factors, so equal steps of rank are equal steps of the logarithm
            return IntDistribution(0, len(values) - 1)
        return CategoricalDistribution([_choice(value) for value in values])
    if limits.integer:
        return IntDistribution(int(limits.low), int(limits.high), log=limits.log, step=int(limits.step or 1))
    return FloatDistribution(limits.low, limits.high, log=limits.log, step=limits.step)


def _drawn(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, IntDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_int(name, low, high, step=distribution.step, log=distribution.log)
    if isinstance(distribution, FloatDistribution):
        ends = distribution.low, distribution.high
        return trial.suggest_float(name, *ends, step=distribution.step, log=distribution.log)
    assert isinstance(distribution, CategoricalDistribution)
    return trial.suggest_categorical(name, distribution.choices)


def _choice(value: Any) -> Any:
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else json.dumps(value, sort_keys=True)


def _nearest(axis: Axis, wanted: Any) -> Any:
    """Return the axis value closest to one that need not be on it."""
    if axis.range is not None:
        number = wanted if isinstance(wanted, int | float) else axis.range.low
        return min(max(number, axis.range.low), axis.range.high)
    values = axis.values or ()
    if wanted in values or not is_scaled(axis) or not isinstance(wanted, int | float):
        return wanted if wanted in values else values[0]
    return min(values, key=lambda value: abs(value - wanted))


def _parents_first(axes: list[Axis], by_path: Mapping[Path, Axis]) -> Iterator[Axis]:
    done: set[str] = set()

    def visit(axis: Axis) -> Iterator[Axis]:
        if axis.key in done:
            return
        done.add(axis.key)
        need = dependency_of(axis.path)
        parents = [by_path[need.on]] if need and need.on in by_path else []
        parents += [other for other in axes if other.key in axis.when]
        for parent in parents:
            yield from visit(parent)
        yield axis

    for axis in axes:
        yield from visit(axis)
