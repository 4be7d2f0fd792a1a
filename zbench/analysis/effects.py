"""What each choice costs: the effect of each axis, from pairs of configurations that agree in all others.
Pure.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from zbench.record.summary import ConfigSummary, point, varied_keys

if TYPE_CHECKING:  # imports scipy, and a ranking of one row needs none
    from zbench.analysis.ratios import Contrast, Fit

_TAIL = 0.005  # of an exception, shared out over all that are looked for
_WORTH_SAYING = math.log(1.01)

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
        return asdict(self) | {"exception": exception}


def effects_of(
    fit: "Fit", summaries: Sequence[ConfigSummary], reference: ConfigSummary
) -> tuple[Effect, ...]:
    """Return the effect of every value of each axis against that of `reference`, the largest of all first.

    Where its value has no pairs, as that of a single row that was included, the fastest row that has some
    takes its place.
    """
    keys = varied_keys(summaries)
    points = {summary.trial_id: point(summary, keys) for summary in summaries}
    fastest = [list(points)[at] for at in np.argsort(fit.estimates[fit.places(points)], kind="stable")]
    effects = []
    for key in keys:
        values = [points[name][key] for name in (reference.trial_id, *fastest)]
        effects += [_effect(fit, points, key, pairs) for pairs in _pairs(points, key, values)]
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


def _effect(fit: "Fit", points: Mapping[str, Mapping[str, Any]], key: str, pairs: Pairs) -> Effect:
    contrast = _contrast(fit, pairs)
    low, high = (math.expm1(end) if math.isfinite(end) else None for end in contrast.interval())
    first, second = pairs[0]
    effect = Effect(
        key, points[first][key], points[second][key], math.expm1(contrast.value), low, high, len(pairs)
    )
    where = _exception(fit, points, key, pairs)
    if where is None:
        return effect
    there = _contrast(fit, [pair for pair in pairs if points[pair[0]][where[0]] == where[1]])
    is_none = _holds_zero(there.interval())
    return replace(effect, exception=where, change_there=math.expm1(there.value), is_none_there=is_none)


def _contrast(fit: "Fit", pairs: Pairs) -> "Contrast":
    """Return the mean over pairs."""
    weights: dict[str, float] = {}
    for one, other in pairs:
        weights[one] = weights.get(one, 0.0) + 1 / len(pairs)
        weights[other] = weights.get(other, 0.0) - 1 / len(pairs)
    return fit.contrast(weights)


def _exception(
    fit: "Fit", points: Mapping[str, Mapping[str, Any]], key: str, pairs: Pairs
) -> tuple[str, Any] | None:
    """Return the value of another axis where the effect differs most from that elsewhere, by more than
    noise.
    """
    splits: list[tuple[tuple[str, Any], Contrast]] = []
    names = [*dict.fromkeys(itertools.chain(*pairs))]
    row = {name: number for number, name in enumerate(names)}
    first, second = np.array([[row[one], row[other]] for one, other in pairs]).T
    for axis in (axis for axis in points[pairs[0][0]] if axis != key):
        values = {repr(points[one][axis]): points[one][axis] for one, _ in pairs}
        if len(values) < 2:
            continue
        place = {name: number for number, name in enumerate(values)}
        number = np.array([place[repr(points[one][axis])] for one, _ in pairs])
        there = np.zeros((len(values), len(names)))
        np.add.at(there, (number, first), 1.0)
        np.add.at(there, (number, second), -1.0)
        pairs_there = np.bincount(number)[:, None]
        elsewhere = (there.sum(axis=0) - there) / (len(pairs) - pairs_there)
        contrasts = fit.contrasts(fit.places(names), there / pairs_there - elsewhere)
        splits += zip(((axis, value) for value in values.values()), contrasts, strict=True)
    real = [
        (abs(contrast.value) / contrast.error if contrast.error else math.inf, where)
        for where, contrast in splits
        if abs(contrast.value) > _WORTH_SAYING and not _holds_zero(contrast.interval(_TAIL / len(splits)))
    ]
    return max(real, key=lambda one: one[0])[1] if real else None


def _holds_zero(interval: tuple[float, float]) -> bool:
    return interval[0] <= 0 <= interval[1]
