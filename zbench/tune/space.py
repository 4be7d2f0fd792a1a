"""The space of a search: axes of a sweep as Optuna's distributions, and points of it as trials.

A point maps axis keys to values and holds only the axes that apply there. An offload ratio means nothing
where nothing is offloaded, so points that differ in it alone are one point, measured once.
"""

import itertools
import json
import math
import random
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from zbench.spec.axes import Axis
from zbench.spec.combinations import dependency_of
from zbench.spec.engine import SIZES
from zbench.spec.expand import Points, base_config, expand
from zbench.spec.keys import value_at
from zbench.spec.sweep import SearchSpec, SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec

Point = dict[str, Any]
MAX_LISTED = 20_000
"""Spaces with more points than this are drawn from and never written out."""

_DRAWS = 1000
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
        self.axes = tuple({axis.key: axis for axis in self._parents_first(self._points.axes)}.values())
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

    @property
    def is_listable(self) -> bool:
        """Whether the points can be written out one by one."""
        sizes = [len(axis.values or ()) for axis in self.axes]
        return all(sizes) and math.prod(sizes) <= MAX_LISTED  # of a range, which has no values, the size is 0

    def points(self) -> list[Point] | None:
        """Return every distinct point that can run, in the file's order; None for a range or too many."""
        if self._listed is None and self.is_listable:
            keys = [axis.key for axis in self.axes]
            product = itertools.product(*(axis.values or () for axis in self.axes))
            points = (self.canonical(dict(zip(keys, values, strict=True))) for values in product)
            distinct = {point_key(point): point for point in points}
            self._listed = [point for point in distinct.values() if self.can_run(point)]
        return self._listed

    def canonical(self, values: Mapping[str, Any]) -> Point:
        """Return the point that these axis values mean: axes that do not act are left at one fixed value."""
        point: Point = {}
        for axis in self.axes:
            if axis.key not in values or not axis.applies(point):
                continue
            if self._acts(axis, point):
                point[axis.key] = values[axis.key]
            elif axis.values is not None and axis.value_in(self._base) not in axis.values:
                point[axis.key] = axis.values[0]
        return point

    def point_of(self, config: Mapping[str, Any]) -> Point:
        """Return the point at which a configuration would lie, if the rest of it is this sweep's."""
        return self.canonical({axis.key: axis.value_in(config) for axis in self.axes})

    def base_point(self) -> Point:
        """Return the point nearest to the file's own configuration."""
        point = {}
        for axis in self.axes:
            base_value = axis.value_in(self._base)
            point[axis.key] = _nearest(axis, SIZES.get(axis.path[-1]) if base_value is None else base_value)
        return self.canonical(point)

    def draw(self, study: optuna.Study) -> tuple[Trial, Point]:
        """Ask a study's sampler for a value of every axis; return its trial, and the point."""
        trial = study.ask(dict(self._distributions))
        return trial, self.canonical({axis.key: _decoded(axis, trial.params[axis.key]) for axis in self.axes})

    def random_point(self, seed: int, taken: Collection[str]) -> Point | None:
        """Return a point that can run and is not taken, drawn at random; None if none was found."""
        points = self.points()
        if points is not None:
            candidates = [point for point in points if point_key(point) not in taken]
            return random.Random(seed).choice(candidates) if candidates else None
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        for _ in range(_DRAWS):
            _, point = self.draw(study)
            if point_key(point) not in taken and self.can_run(point):
                return point
        return None

    def encode(self, point: Point) -> tuple[dict[str, Any], dict[str, BaseDistribution]] | None:
        """Return a point as Optuna's parameters and distributions; None if it is not in this space."""
        params: dict[str, Any] = {}
        if point.keys() - self._distributions.keys():
            return None
        for axis in self.axes:
            if not axis.applies(point) or not self._acts(axis, point):
                continue
            value = _encoded(axis, point[axis.key]) if axis.key in point else None
            if value is None:
                return None
            params[axis.key] = value
        return params, {key: self._distributions[key] for key in params}

    def _included(self) -> list[Point]:
        """Return the points of `include`, which need not lie on the axes."""
        alone = {"axes": {}, "exclude": [], "search": SearchSpec()}
        trials = expand(self.sweep.model_copy(update=alone)).trials if self.sweep.include else []
        self._trials |= {point_key(trial.axes): trial for trial in trials}
        return [trial.axes for trial in trials]

    def _acts(self, axis: Axis, point: Mapping[str, Any]) -> bool:
        """Whether this axis changes anything at a point that already holds what it depends on."""
        need = dependency_of(axis.path)
        if need is None:
            return True
        parent = self._by_path.get(need.on)
        base_value = value_at(self._base, need.on)
        return (base_value if parent is None else point.get(parent.key, base_value)) in need.values

    def _parents_first(self, axes: list[Axis]) -> Iterator[Axis]:
        """Yield each axis after those it depends on; some more than once."""
        for axis in axes:
            need = dependency_of(axis.path)
            parents = [other for other in self._points.axes if other.key in axis.when]
            if need is not None and need.on in self._by_path:
                parents.insert(0, self._by_path[need.on])
            yield from self._parents_first(parents)
            yield axis


def is_scaled(axis: Axis) -> bool:
    """Whether the values of an axis lie on a number line: sizes and counts, but no kinds or switches."""
    values = axis.values or ()
    numeric = all(isinstance(value, int | float) for value in values)  # switches, too, but they have only two
    return numeric and len(values) > 2 and axis.path not in _NO_SCALE


def _encoded(axis: Axis, value: Any) -> Any:
    """Return a value as its Optuna parameter: its rank on a scale, else itself; None if the axis lacks it."""
    if axis.range is not None:  # a key at its default can be null, or a word such as `auto`
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and axis.range.low <= value <= axis.range.high else None
    if value not in (axis.values or ()):
        return None
    return sorted(axis.values or ()).index(value) if is_scaled(axis) else _choice(value)


def _decoded(axis: Axis, value: Any) -> Any:
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
        if is_scaled(axis):  # sizes are listed by factors, so equal steps of rank are those of the logarithm
            return IntDistribution(0, len(values) - 1)
        return CategoricalDistribution([_choice(value) for value in values])
    if limits.integer:
        return IntDistribution(int(limits.low), int(limits.high), log=limits.log)
    return FloatDistribution(limits.low, limits.high, log=limits.log)


def _choice(value: Any) -> Any:
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else json.dumps(value, sort_keys=True)


def _nearest(axis: Axis, target: Any) -> Any:
    """Return the axis value closest to one that need not be on it."""
    if axis.range is not None:
        number = target if isinstance(target, int | float) else axis.range.low
        return min(max(number, axis.range.low), axis.range.high)
    values = axis.values or ()
    if target not in values and is_scaled(axis) and isinstance(target, int | float):
        return min(values, key=lambda value: abs(value - target))
    return target if target in values else values[0]
