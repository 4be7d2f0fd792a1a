"""Ratios of each configuration of a run to its counterpart, which differs only in the named keys. Pure.

The ratio of two step times is the mean, over the heats that both were in, of the difference of their
logarithms: a heat gives one value, the mean over its turns (`zbench.analysis.ranking.cost_table`). Where they
share fewer than three heats every round counts, and `alone` links the heats that they were in. The interval
is Student's over heats: a heat has fresh processes, and the steps of one process are no sample.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

from zbench.analysis.ranking import cost_table
from zbench.errors import UsageError
from zbench.record.summary import ConfigSummary, is_incorrect, point, varied_keys
from zbench.spec.axes import checked_value
from zbench.spec.document import parse_scalar
from zbench.spec.keys import Key, resolve_key, short_name
from zbench.spec.metrics import Goal
from zbench.spec.problems import ProblemsError

_TAIL = 0.025
_BEST = "best:"
_LEAST_HEATS = 3
_TIME, _PEAK = (Goal(name, "minimize") for name in ("mean_step_s", "peak_device_bytes"))


class Ratio(NamedTuple):
    """A figure over the counterpart's, with its 95 % interval: 0 to infinity if there is only one repeat."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RelativeRow:
    """A configuration and its counterpart. peak: of the device; None where a side has none.

    heats: how many they share; with fewer than three the ratio of times rests on all rounds.
    """

    summary: ConfigSummary
    counterpart: ConfigSummary
    time: Ratio
    peak: Ratio | None
    heats: int


@dataclass(frozen=True, slots=True)
class Relative:
    """The rows of a run, in its order, and the configurations without a counterpart.

    named: key -> the values that a counterpart may have. axes: the keys that the rows vary. by: the axes with
    one table for each value.
    """

    rows: tuple[RelativeRow, ...]
    lonely: tuple[ConfigSummary, ...]
    named: Mapping[str, tuple[Any, ...]]
    axes: tuple[str, ...]
    by: tuple[str, ...]


class _Side(NamedTuple):
    """A configuration, its values of the keys; by round the logarithms of time and peak, and the heat."""

    summary: ConfigSummary
    values: Mapping[str, Any]
    times: Sequence[float]
    peaks: Sequence[float]
    heats: Sequence[str | None]


def compared(
    summaries: Iterable[ConfigSummary], texts: Sequence[str], by: Sequence[str] = ()
) -> Relative | None:
    """Return each configuration that ended well against the fastest of its counterparts; None without texts.

    texts: `KEY=VALUE` or `best:KEY=VALUE,VALUE`. A counterpart has the named values and agrees in all other
    axes; where one does not vary an axis, what its configuration holds counts. What computes something else
    is none. UsageError, with the remedy, where no configuration has one, and for an unknown axis in `by`.
    """
    if not texts:
        if by:
            raise UsageError("--by splits relative tables; add --relative-to KEY=VALUE, or leave --by out")
        return None
    named = dict(map(_named, texts))
    groups: dict[bool, list[_Side]] = {True: [], False: []}
    for side in _sides([summary for summary in summaries if summary.values(_TIME.metric)], named):
        groups[all(side.values[key] in wanted for key, wanted in named.items())].append(side)
    rows, lonely = [], []
    for side in groups[False]:
        beside = [row for other in groups[True] if (row := _row(side, other, named)) is not None]
        if beside:
            rows.append(max(beside, key=lambda row: row.time.value))
        else:
            lonely.append(side.summary)
    if not rows:
        raise UsageError(_no_counterpart([side.summary for side in groups[True]] or lonely, named))
    axes = varied_keys([row.summary for row in rows])
    keys = tuple(short_name(_path(text, "--by")) for text in by)
    for key in keys:
        if key not in axes:
            raise UsageError(f"--by: expected an axis of these configurations ({', '.join(axes)}), got {key}")
    return Relative(tuple(rows), tuple(lonely), named, tuple(axes), keys)


def _named(text: str) -> tuple[str, tuple[Any, ...]]:
    """Return the key and the values that a text names; UsageError for any other."""
    key, _, written = text.removeprefix(_BEST).partition("=")
    options = written.split(",")
    if not all((key, *options)) or (len(options) > 1 and not text.startswith(_BEST)):
        form = "KEY=VALUE, or best:KEY=VALUE,VALUE for the faster of several"
        raise UsageError(f"--relative-to: expected {form}, got {text!r}")
    path = _path(key, "--relative-to")
    try:
        values = tuple(checked_value(path, parse_scalar(one, key), (key,)) for one in options)
    except ProblemsError as error:
        raise UsageError(f"--relative-to: {error}") from None
    return short_name(path), values


def _path(key: str, flag: str) -> Key:
    try:
        return resolve_key(key)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _sides(able: Sequence[ConfigSummary], named: Iterable[str]) -> Iterator[_Side]:
    rounds = sorted({record.repeat for summary in able for record in summary.ok})
    heats = [{r.repeat: r.heat.name for r in summary.ok if r.heat is not None} for summary in able]
    by_round = ([names.get(number) for number in rounds] for names in heats)
    tables = (cost_table(able, goal) for goal in (_TIME, _PEAK))
    values = (point(summary, [*varied_keys(able), *named]) for summary in able)
    return starmap(_Side, zip(able, values, *tables, by_round, strict=True))


def _row(side: _Side, other: _Side, named: Mapping[str, Any]) -> RelativeRow | None:
    """Return the row of two configurations; None if the second is no counterpart, or no round has both."""
    are_apart = any(other.values[key] != value for key, value in side.values.items() if key not in named)
    times, peaks = _differences(side.times, other.times), _differences(side.peaks, other.peaks)
    if are_apart or is_incorrect(other.summary) or not times:
        return None
    shared = [i for i in times if side.heats[i] is not None and side.heats[i] == other.heats[i]]
    used = shared if len(shared) >= _LEAST_HEATS else times
    peak = _ratio(peaks.values()) if peaks else None
    return RelativeRow(side.summary, other.summary, _ratio([times[i] for i in used]), peak, len(shared))


def _differences(logs: Sequence[float], others: Sequence[float]) -> dict[int, float]:
    """Return the difference of each round that has both."""
    differences = (one - other for one, other in zip(logs, others, strict=True))
    return {i: difference for i, difference in enumerate(differences) if not math.isnan(difference)}


def _ratio(differences: Iterable[float]) -> Ratio:
    from zbench.analysis.statistics import paired_estimate  # imports scipy

    estimate = paired_estimate(list(differences))
    return Ratio(*map(math.exp, (estimate.log_ratio, *estimate.interval(_TAIL))))


def _no_counterpart(near: Sequence[ConfigSummary], named: Mapping[str, Sequence[Any]]) -> str:
    """Return that nothing has a counterpart, and what may be named. near: what has the values, or all."""
    wanted = " ".join(f"{key}={','.join(map(str, values))}" for key, values in named.items())
    held = {key: dict.fromkeys(str(point(one, [key])[key]) for one in near) for key in varied_keys(near)}
    known = "; ".join(f"{key}={', '.join(values)}" for key, values in held.items())
    return (
        f"--relative-to: no configuration has a counterpart with {wanted} that agrees in every other axis;"
        f" there is {known or 'nothing timed yet'}: name another value, or another key as well"
    )
