"""What each choice costs: the effect of each axis, from pairs of configurations that agree in all others.
Pure.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zbench.record.summary import ConfigSummary, point, varied_keys

if TYPE_CHECKING:  # imports scipy, and a ranking of one row needs none
    from zbench.analysis.cells import Indices
    from zbench.analysis.ratios import Contrast, Fit

_TAIL = 0.005  # of an exception, shared out over all that are looked for
_WORTH_SAYING = math.log(1.01)
_AT_ONCE = 256  # values of other axes, whose weights may be of all rows

Pairs = Sequence[tuple[str, str]]
"""Trial ids of configurations that differ in one axis alone: with the one value, and with the other."""


@dataclass(frozen=True, slots=True)
class Effect:
    """How much more a value of an axis costs than another, as a fraction, with its 95 % interval.

    low, high: None where nothing is known of the noise. pairs: of configurations that differ in this axis
    alone. exception: where the effect is another one, by more than noise, such as `zero_stage`, 3;
    change_there: that one.
    """

    axis: str
    value: Any
    against: Any
    change: float
    low: float | None
    high: float | None
    pairs: int
    exception: tuple[str, Any] | None = None
    change_there: float | None = None
    is_none_there: bool = False

    def document(self) -> dict[str, Any]:
        """Return plain values; the exception as a mapping of the axis to its value."""
        exception = None if self.exception is None else dict([self.exception])
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"exception": exception}


def effects_of(
    fit: "Fit", summaries: Sequence[ConfigSummary], reference: ConfigSummary
) -> tuple[Effect, ...]:
    """Return the effect of every value of each axis against that of `reference`, the largest of all first.

    Where its value has no pairs, as that of a single row that was included, the fastest row that has some
    takes its place.
    """
    keys = varied_keys(summaries)
    points = {summary.trial_id: point(summary, keys) for summary in summaries}
    names = [*points]
    fastest = [names[at] for at in np.argsort(fit.estimates[fit.places(names)], kind="stable")]
    effects: list[Effect] = []
    for key in keys:
        values = [points[name][key] for name in (reference.trial_id, *fastest)]
        if choices := _pairs(points, key, values):
            effects += _effects(fit, points, key, choices)
    return tuple(sorted(effects, key=lambda effect: -abs(math.log1p(effect.change))))


def _pairs(
    points: Mapping[str, Mapping[str, Any]], key: str, preferred: Sequence[Any]
) -> list[list[tuple[str, str]]]:
    """Return the pairs that differ in one key alone, for each value of the key that has any: with that value,
    and with the first of the preferred values that has pairs.
    """
    alike: dict[str, dict[str, list[str]]] = {}  # the other keys -> this one's value -> configurations
    for name, one in points.items():
        alike.setdefault(repr({**one, key: None}), {}).setdefault(repr(one[key]), []).append(name)
    comparable = [names for names in alike.values() if len(names) > 1]
    paired = set(itertools.chain(*comparable))
    against = next((value for value in map(repr, preferred) if value in paired), "")
    pairs: dict[str, list[tuple[str, str]]] = {}
    for names in comparable:
        second = names.pop(against, ())
        for value, first in names.items() if second else ():
            pairs.setdefault(value, []).extend(itertools.product(first, second))
    return list(pairs.values())


class _Split(NamedTuple):
    """The effect where another axis has one value, and by how much it differs from the effect elsewhere."""

    where: tuple[str, Any]
    there: "Contrast"
    apart: "Contrast"


def _effects(
    fit: "Fit", points: Mapping[str, Mapping[str, Any]], key: str, choices: Sequence[Pairs]
) -> Iterator[Effect]:
    """Yield the effect of each choice of an axis: the mean over its pairs."""
    pairs = [*itertools.chain(*choices)]
    choice = np.repeat(np.arange(len(choices)), [len(its_pairs) for its_pairs in choices])
    ends = fit.places(itertools.chain(*pairs)).reshape(-1, 2)
    splits: list[list[_Split]] = [[] for _ in choices]
    for axis in (axis for axis in points[pairs[0][0]] if axis != key):
        for at, split in _splits(fit, axis, [points[first][axis] for first, _ in pairs], ends, choice):
            splits[at].append(split)
    means = fit.contrasts(fit.mean_differences(ends, choice))
    for its_pairs, mean, its_splits in zip(choices, means, splits, strict=True):
        value, against = (points[name][key] for name in its_pairs[0])
        low, high = (math.expm1(end) if math.isfinite(end) else None for end in mean.interval())
        effect = Effect(key, value, against, math.expm1(mean.value), low, high, len(its_pairs))
        if (exception := _exception(its_splits)) is not None:
            where, there, _ = exception
            change = math.expm1(there.value)
            is_none = _holds_zero(there.interval())
            effect = replace(effect, exception=where, change_there=change, is_none_there=is_none)
        yield effect


def _splits(
    fit: "Fit", axis: str, values: Sequence[Any], ends: "Indices", choice: "Indices"
) -> Iterator[tuple[int, _Split]]:
    """Yield the split of each choice at each value of another axis, unless all of its pairs have this value.

    values, ends, choice: of each pair its value of the axis, its rows, and its choice. The difference from
    the pairs elsewhere is that from all pairs, divided by the share of those elsewhere.
    """
    groups = [*zip(choice.tolist(), map(repr, values), strict=True)]
    value_of = dict(zip(groups, values, strict=True))
    place = {group: number for number, group in enumerate(value_of)}
    number = np.array([place[group] for group in groups])
    there, everywhere = (fit.mean_differences(ends, numbers) for numbers in (number, choice))
    of = np.array([at for at, _ in value_of])
    elsewhere = 1 - np.bincount(number) / np.bincount(choice)[of]
    wheres = [(at, (axis, value)) for (at, _), value in value_of.items()]
    apart = np.flatnonzero(elsewhere)
    for some in (apart[start : start + _AT_ONCE] for start in range(0, len(apart), _AT_ONCE)):
        gaps = (there[some] - everywhere[of[some]]).multiply(1 / elsewhere[some][:, None]).tocsr()
        for at, *contrasts in zip(some, fit.contrasts(there[some]), fit.contrasts(gaps), strict=True):
            its_choice, where = wheres[at]
            yield its_choice, _Split(where, *contrasts)


def _exception(splits: Sequence[_Split]) -> _Split | None:
    """Return the split that differs most from the effect elsewhere, by more than noise."""
    tail = _TAIL / max(len(splits), 1)
    large = [split for split in splits if abs(split.apart.value) > _WORTH_SAYING]
    real = [split for split in large if not _holds_zero(split.apart.interval(tail))]
    return max(real, key=lambda split: split.apart.in_errors, default=None)


def _holds_zero(interval: tuple[float, float]) -> bool:
    return interval[0] <= 0 <= interval[1]
