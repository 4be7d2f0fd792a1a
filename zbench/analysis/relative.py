"""Ratios of each configuration of a run to its counterpart, which differs only in the named keys. Pure.

The ratio of two step times is a contrast of the run's table of log times (`zbench.analysis.ratios`), with
its 95 % interval for one pair. Peaks are exact.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zbench.errors import UsageError
from zbench.record.summary import ConfigSummary, is_incorrect, point, varied_keys
from zbench.spec.axes import checked_value
from zbench.spec.document import parse_scalar
from zbench.spec.keys import Key, resolve_key, short_name
from zbench.spec.metrics import Goal
from zbench.spec.problems import ProblemsError

if TYPE_CHECKING:  # imports scipy
    from zbench.analysis.ratios import Fit

_BEST = "best:"
_FAR = 100.0  # a logarithm: what is not bounded
_TIME = Goal("mean_step_s", "minimize")


class Ratio(NamedTuple):
    """A figure over the counterpart's, with its 95 % interval: 0 to infinity if there is only one repeat."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RelativeRow:
    """A configuration and its counterpart. peak: of the device; None where a side has none. heats: shared."""

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
    able = [summary for summary in summaries if summary.values(_TIME.metric)]
    declared = {
        name for summary in able for name in (summary.config.get("workload") or {}).get("parameters") or ()
    }
    named = dict(_named(text, declared) for text in texts)
    points = {summary.trial_id: point(summary, [*varied_keys(able), *named]) for summary in able}
    groups: dict[bool, list[ConfigSummary]] = {True: [], False: []}
    for summary in able:
        values = points[summary.trial_id]
        groups[all(values[key] in accepted for key, accepted in named.items())].append(summary)
    fit = _fit(able)
    rows, lonely = [], []
    for summary in groups[False]:
        beside = [
            _row(summary, other, fit)
            for other in groups[True]
            if _agree(points[summary.trial_id], points[other.trial_id], named) and not is_incorrect(other)
        ]
        if beside:
            rows.append(max(beside, key=lambda row: row.time.value))
        else:
            lonely.append(summary)
    if not rows:
        raise UsageError(_no_counterpart(groups[True] or lonely, named))
    axes = varied_keys([row.summary for row in rows])
    keys = tuple(short_name(_path(text, "--by", declared)) for text in by)
    for key in keys:
        if key not in axes:
            raise UsageError(f"--by: expected an axis of these configurations ({', '.join(axes)}), got {key}")
    return Relative(tuple(rows), tuple(lonely), named, tuple(axes), keys)


def _named(text: str, declared: Collection[str]) -> tuple[str, tuple[Any, ...]]:
    """Return the key and the values that a text names; UsageError for any other.

    declared: the names of `workload.parameters`.
    """
    key, _, written = text.removeprefix(_BEST).partition("=")
    options = written.split(",")
    if not all((key, *options)) or (len(options) > 1 and not text.startswith(_BEST)):
        form = "KEY=VALUE, or best:KEY=VALUE,VALUE for the faster of several"
        raise UsageError(f"--relative-to: expected {form}, got {text!r}")
    path = _path(key, "--relative-to", declared)
    try:
        values = tuple(checked_value(path, parse_scalar(one, key), (key,)) for one in options)
    except ProblemsError as error:
        raise UsageError(f"--relative-to: {error}") from None
    return short_name(path), values


def _path(key: str, flag: str, declared: Collection[str]) -> Key:
    try:
        return resolve_key(key, declared)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _fit(able: Sequence[ConfigSummary]) -> "Fit | None":
    from zbench.analysis.cells import cells_of
    from zbench.analysis.ratios import fitted

    return fitted(cells_of(able, _TIME)) if able else None


def _agree(one: Mapping[str, Any], other: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    return all(other[key] == value for key, value in one.items() if key not in named)


def _row(summary: ConfigSummary, other: ConfigSummary, fit: "Fit | None") -> RelativeRow:
    assert fit is not None, "both have times"
    contrast = fit.contrast({summary.trial_id: 1.0, other.trial_id: -1.0})
    time = Ratio(math.exp(contrast.value), *map(_ratio, contrast.interval()))
    peak_bytes, other_bytes = (one.number("peak_device_bytes") for one in (summary, other))
    peak = Ratio(*3 * [peak_bytes / other_bytes]) if peak_bytes is not None and other_bytes else None
    heats = [{r.heat.name for r in one.ok if r.heat is not None} for one in (summary, other)]
    return RelativeRow(summary, other, time, peak, len(heats[0] & heats[1]))


def _ratio(log: float) -> float:
    return math.exp(log) if log < _FAR else math.inf


def _no_counterpart(near: Sequence[ConfigSummary], named: Mapping[str, Sequence[Any]]) -> str:
    """Return that nothing has a counterpart, and what may be named. near: what has the values, or all."""
    settings = " ".join(f"{key}={','.join(map(str, values))}" for key, values in named.items())
    held = {key: dict.fromkeys(str(point(one, [key])[key]) for one in near) for key in varied_keys(near)}
    alternatives = "; ".join(f"{key}={', '.join(values)}" for key, values in held.items())
    return (
        f"--relative-to: no configuration has a counterpart with {settings} that agrees in every other axis;"
        f" there is {alternatives or 'nothing timed yet'}: name another value, or another key as well"
    )
