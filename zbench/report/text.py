"""Figures and points as people read them."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from zbench.record.record import Record
from zbench.record.summary import ConfigSummary
from zbench.report.printable import printable
from zbench.units import format_bytes, format_seconds

VERDICT_STYLE = {
    "identical": "green",
    "equivalent": "green",
    "drifted": "bold yellow",
    "wrong": "bold red",
    "unchecked": "dim",
}
OUTCOME_STYLE = {
    "ok": "green",
    "oom": "red",
    "timeout": "red",
    "pruned": "dim",
    "crashed": "bold red",
    "invalid": "dim",
}
_ROUND = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def outcome_text(one: Record | ConfigSummary) -> str:
    """Return how a trial ended; a search that ended it, because it was slow, did not run out of time."""
    return "pruned" if one.error is not None and one.error.kind == "pruned" else one.outcome


def axes_text(axes: dict[str, Any]) -> str:
    """Return a point as `zero_stage=1 reduce_bucket_size=5M`."""
    return (
        " ".join(f"{printable(key)}={value_text(value)}" for key, value in axes.items())
        or "(the one configuration)"
    )


def values_text(axes: dict[str, Any]) -> str:
    """Return a point's values alone, where there is no room for keys."""
    return " · ".join(value_text(value) for value in axes.values()) or "(the one configuration)"


def value_text(value: Any) -> str:
    """Return an axis value as a sweep file may spell it: 5000000 is `5M`."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        for unit, letter in _ROUND:
            if value % unit == 0:
                return f"{value // unit}{letter}"
    if isinstance(value, dict) and value:
        return ",".join(f"{printable(key)}:{value_text(inner)}" for key, inner in _leaves(value))
    return printable(value) if isinstance(value, str) else json.dumps(value)


def _leaves(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the innermost values of nested mappings, each with its keys joined: `*.bias.frozen`."""
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from ((f"{key}.{name}", leaf) for name, leaf in _leaves(inner))
        else:
            yield key, inner


def distinct_texts(values: Iterable[Any], width: int) -> dict[str, str]:
    """Return the text of each value by its `value_text`, cut to `width`, alike only where the values are."""
    whole = list(dict.fromkeys(value_text(value) for value in values))
    cut = [text if len(text) <= width else f"{text[: width - 1]}…" for text in whole]
    times = Counter(cut)
    return {
        text: short if times[short] == 1 else f"{text[: width - len(str(number)) - 2]}…#{number}"
        for number, (text, short) in enumerate(zip(whole, cut, strict=True), start=1)
    }


def rate_text(value: float | None) -> str:
    """Return tokens a second: whole numbers with separators, three digits where that is less."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread_text(value: float | None) -> str:
    """Return a share as `±1.2%`."""
    return "-" if value is None else f"±{value:.1%}"


def seconds_text(value: float | None) -> str:
    """Return a duration as `84.6 ms`."""
    return "-" if value is None else format_seconds(value)


def bytes_text(value: float | None) -> str:
    """Return a size as `1.46 GiB`."""
    return "-" if value is None else format_bytes(value)


def ratio_text(value: float | None) -> str:
    """Return an error ratio with two decimals, or three digits where it is large."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 1000 else f"{value:.3g}"


def clock_text(seconds: float | None) -> str:
    """Return a time left, as `1:05` or `2:00:00`; `-:--` where it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plural(count: int, noun: str) -> str:
    """Return `1 repeat` or `2 repeats`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
