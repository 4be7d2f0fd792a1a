"""Configurations relative to their counterparts, as text: one table for each value of the chosen axes."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.text import Text

from zbench.analysis.relative import Ratio, Relative, RelativeRow
from zbench.record.summary import ConfigSummary, point
from zbench.report.roles import word
from zbench.report.screen import Column, Screen, print_table
from zbench.report.text import (
    axes_text,
    bytes_text,
    outcome_text,
    printable,
    seconds_text,
    value_text,
)

_METRICS = ("mean_step_s", "peak_device_bytes", "verdict")
_WORDS = ("against", "verdict")
_DROPPED_FIRST = ("optimizer", "peaks", "steps")
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class RelativeTable:
    """heading: what all rows have in common. cells: the verdict is the last. summary: below; may be empty."""

    heading: str
    columns: tuple[str, ...]
    cells: list[list[str]]
    summary: str


def relative_tables(relative: Relative) -> list[RelativeTable]:
    """Return a table for each distinct value of the axes `relative.by`; rows in the order of their values."""

    def place(row: RelativeRow) -> list[tuple[float, str]]:
        values = point(row.summary, relative.axes).values()
        return [(one, "") if isinstance(one, int | float) else (0.0, value_text(one)) for one in values]

    groups: dict[str, list[RelativeRow]] = {}
    for row in sorted(relative.rows, key=place):
        groups.setdefault(axes_text(point(row.summary, relative.by)), []).append(row)
    return [_table(rows, relative) for rows in groups.values()]


def _table(rows: Sequence[RelativeRow], relative: Relative) -> RelativeTable:
    points = [point(row.summary, relative.axes) for row in rows]
    varied = [key for key in relative.axes if any(one[key] != other[key] for one, other in pairwise(points))]
    shared = {key: value for key, value in points[0].items() if key not in varied}
    columns = {key: [value_text(values[key]) for values in points] for key in varied}
    against = [axes_text(point(row.counterpart, relative.named)) for row in rows]
    heading = axes_text(shared) if shared else ""
    if len(set(against)) == 1:
        heading = f"{heading} against {against[0]}".lstrip()
    else:
        columns["against"] = against
    columns |= {name: [figure(row) for row in rows] for name, figure in _FIGURES.items()}
    cells = list(map(list, zip(*columns.values(), strict=True)))
    return RelativeTable(heading, tuple(map(printable, columns)), cells, _summary(rows))


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its interval, as `0.93 (0.91 to 0.95)`; exact ones and single repeats have none."""
    if ratio is None:
        return "-"
    value, low, high = (f"{figure:.2f}" for figure in (ratio.value, ratio.low, ratio.high))
    return value if low == high or math.isinf(ratio.high) else f"{value} ({low} to {high})"


def _both(text: Callable[[ConfigSummary], str]) -> Callable[[RelativeRow], str]:
    return lambda row: f"{text(row.summary)} / {text(row.counterpart)}"


_FIGURES: dict[str, Callable[[RelativeRow], str]] = {
    "time (95 %)": lambda row: ratio_text(row.time),
    "peak (95 %)": lambda row: ratio_text(row.peak),
    "steps": _both(lambda one: seconds_text(one.number("mean_step_s"))),
    "optimizer": _both(lambda one: seconds_text(one.phases.get("optimizer"))),
    "peaks": _both(lambda one: bytes_text(one.number("peak_device_bytes"))),
    "verdict": lambda row: row.summary.verdict if row.summary.outcome == "ok" else outcome_text(row.summary),
}


def _summary(rows: Sequence[RelativeRow]) -> str:
    """Return median and worst of times and peaks; nothing for a single row."""
    peaks = [row.peak for row in rows if row.peak is not None]
    figures = {"time": [row.time for row in rows], "peak": peaks}
    return "; ".join(_spread(name, ratios) for name, ratios in figures.items() if len(ratios) > 1)


def _spread(name: str, ratios: Sequence[Ratio]) -> str:
    median = statistics.median(ratio.value for ratio in ratios)
    above = f"in {sum(r.low > 1 for r in ratios)} of {len(ratios)} the whole interval is above 1"
    return f"{name} {median:.2f} in the median, {ratio_text(max(ratios))} at most, {above}"


def lonely_line(relative: Relative) -> str:
    """Return a line of the configurations without a counterpart; empty if all have one."""
    lonely = [axes_text(summary.axes) for summary in relative.lonely]
    more = f" and {len(lonely) - _MOST_NAMED} more" if len(lonely) > _MOST_NAMED else ""
    return f"without a counterpart: {'; '.join(lonely[:_MOST_NAMED])}{more}" if lonely else ""


def print_relative(screen: Screen, relative: Relative) -> None:
    """Print the tables, and the configurations without a counterpart."""
    for table in relative_tables(relative):
        screen.print(Text(table.heading, "bold"))
        columns = [Column(name, "left" if name in _WORDS else "right") for name in table.columns]
        rows = [(*map(Text, cells), word(verdict)) for *cells, verdict in table.cells]
        print_table(screen, columns, rows, dropped_first=_DROPPED_FIRST, kept=("verdict",))
        screen.print(f"{table.summary}\n", soft_wrap=True)
    screen.print(lonely_line(relative), soft_wrap=True, end="")


def relative_document(row: RelativeRow) -> dict[str, Any]:
    """Return a row as plain values; an end of an interval that one repeat does not give is null."""
    document: dict[str, Any] = {}
    for start, one in (("", row.summary), ("against_", row.counterpart)):
        document |= {f"{start}trial_id": one.trial_id, f"{start}axes": one.axes}
        document |= {f"{start}{name}": one.metric(name) for name in _METRICS}
    for name, ratio in (("time", row.time), ("peak", row.peak or (None, None, None))):
        known = (end if end is not None and 0 < end < math.inf else None for end in ratio)
        document |= dict(zip((f"{name}_ratio", f"{name}_low", f"{name}_high"), known, strict=True))
    return document | {"shared_heats": row.heats}
