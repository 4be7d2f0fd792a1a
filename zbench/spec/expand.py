"""From a sweep to its trials: the product of the axes, less `exclude`, plus `include`, each point once."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zbench.errors import SpecError
from zbench.spec.axes import Axis, Point, included, resolve_axes
from zbench.spec.covering import covering
from zbench.spec.keys import Path
from zbench.spec.points import Points
from zbench.spec.problems import Problem, ProblemsError
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec

MAX_POINTS = 100_000


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
        points = Points(sweep, checked_axes(sweep))
        extra = included(sweep)
    except ProblemsError as error:
        raise SpecError(str(error)) from None
    if any(axis.range is not None for axis in points.axes):
        raise SpecError("a range has no list of points; a search draws them", key="axes")
    found = Expansion([], [])
    seen: set[str] = set()
    excluded = duplicates = 0
    used: set[int] = set()
    for trial in _walk(points, extra, used):
        if trial is None:
            excluded += 1
            continue
        if trial.trial_id in seen:
            duplicates += 1
        elif isinstance(trial, TrialSpec):
            found.trials.append(trial)
        else:
            found.invalid.append(trial)
        seen.add(trial.trial_id)
    unused = [index for index in range(len(points.excludes)) if index not in used]
    if sweep.search.method == "covering":
        chosen = covering([trial.axes for trial in found.trials], sweep.search.strength, sweep.search.seed)
        return Expansion([found.trials[index] for index in chosen], [], duplicates, excluded, unused)
    return Expansion(found.trials, found.invalid, duplicates, excluded, unused)


def all_points(sweep: SweepSpec) -> Iterator[TrialSpec | InvalidTrial]:
    """Yield the points of a checked sweep one by one, those excluded left out, duplicates not."""
    points = Points(sweep, checked_axes(sweep))
    return (trial for trial in _walk(points, included(sweep), set()) if trial is not None)


def _walk(
    points: Points, extra: Sequence[Mapping[Path, Any]], used: set[int]
) -> Iterator[TrialSpec | InvalidTrial | None]:
    """Yield every point in order, None for one that is excluded. used: gets entries that match a point."""
    if points.axes or not extra:
        for point in _product(points.axes, {}):
            blocks = points.blocks(point)
            matched = points.excluding(blocks)
            used |= matched
            yield None if matched else points.trial(point, blocks)
    for values in extra:
        yield points.included(values)


def checked_axes(sweep: SweepSpec) -> list[Axis]:
    """Return the axes of a sweep; ProblemsError where one is mistaken or their product is too large."""
    axes = resolve_axes(sweep)
    count = math.prod(len(axis.values) for axis in axes if axis.values is not None)
    if count > MAX_POINTS and sweep.search.is_listed:
        message = f"the product has {count:,} points, more than {MAX_POINTS:,}"
        message += "; shorten an axis or set search.method"
        raise ProblemsError([Problem(("axes",), message)])
    return axes


def _product(axes: Sequence[Axis], point: dict[str, Any]) -> Iterator[Point]:
    """Yield the product of the axes that apply, the last axis varying fastest."""
    if not axes:
        yield point
        return
    first, rest = axes[0], axes[1:]
    if not first.applies(point):
        yield from _product(rest, point)
        return
    for value in first.values or ():
        yield from _product(rest, {**point, first.key: value})
