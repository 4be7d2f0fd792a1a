"""Configurations relative to their counterparts, as text: one table for each value of the chosen axes."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

from rich.text import Text

from zbench.analysis.relative import Ratio, Relative, RelativeRow
from zbench.record.summary import ConfigSummary, point
from zbench.report.columns import AXES, RESULT, TRIAL, Column, DataTable, axis, metric
from zbench.report.screen import Screen, print_table
from zbench.report.text import axes_text, value_text
from zbench.units import format_seconds

_DROPPED_FIRST = ("optimizer", "peak_device_bytes", "mean_step_s")
_MOST_NAMED = 3


def relative_tables(relative: Relative) -> list[DataTable[RelativeRow]]:
    """Return a table for each distinct value of the axes `relative.by`; rows in the order of their values."""

    def place(row: RelativeRow) -> list[tuple[float, str]]:
        values = point(row.summary, relative.axes).values()
        return [(one, "") if isinstance(one, int | float) else (0.0, value_text(one)) for one in values]

    groups: dict[str, list[RelativeRow]] = {}
    for row in sorted(relative.rows, key=place):
        groups.setdefault(axes_text(point(row.summary, relative.by)), []).append(row)
    return [_table(rows, relative) for rows in groups.values()]


def _table(rows: Sequence[RelativeRow], relative: Relative) -> DataTable[RelativeRow]:
    points = [point(row.summary, relative.axes) for row in rows]
    varied = [key for key in relative.axes if any(one[key] != other[key] for one, other in pairwise(points))]
    shared = {key: value for key, value in points[0].items() if key not in varied}
    columns = [axis(key).of(_OWN) for key in varied]
    against = Column[RelativeRow](
        "against", lambda row: axes_text(point(row.counterpart, relative.named)), left=True
    )
    counterparts = {against.text(row) for row in rows}
    heading = axes_text(shared) if shared else ""
    if len(counterparts) == 1:
        heading = f"{heading} against {counterparts.pop()}".lstrip()
    else:
        columns.append(against)
    return DataTable([*columns, *_FIGURES], rows, heading, below=_summary(rows))


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval, as `0.93 (0.91 to 0.95)`; exact ones and single repeats have none."""
    value, low, high = (f"{figure:.2f}" for figure in (ratio.value, ratio.low, ratio.high))
    return value if low == high or math.isinf(ratio.high) else f"{value} ({low} to {high})"


def _interval(name: str, ratio: Callable[[RelativeRow], Ratio | None]) -> Iterator[Column[RelativeRow]]:
    """Yield a ratio and the ends of its interval; an end that one repeat does not give is None."""

    def end(row: RelativeRow, part: str) -> float | None:
        value = getattr(ratio(row), part, math.nan)
        return value if 0 < value < math.inf else None

    for suffix, part in (("ratio", "value"), ("low", "low"), ("high", "high")):
        yield Column(f"{name}_{suffix}", partial(end, part=part))


_BY_TURNS = "by what took turns, so not always the ratio of the mean steps"
_OWN, _COUNTERPART = attrgetter("summary"), attrgetter("counterpart")
_OPTIMIZER = Column[ConfigSummary](
    "optimizer", lambda summary: summary.phases.get("optimizer"), format_seconds
)
_FIGURES: tuple[Column[RelativeRow], ...] = (
    Column("time_ratio", lambda row: row.time, ratio_text, "time (95 %)", note=_BY_TURNS),
    Column("peak_ratio", lambda row: row.peak, ratio_text, "peak (95 %)"),
    *(
        column.of_both(attrgetter("summary", "counterpart"), lambda this, other: f"{this} / {other}")
        for column in (metric("mean_step_s"), _OPTIMIZER, metric("peak_device_bytes"))
    ),
    RESULT.of(_OWN),
)
_SIDE = (TRIAL, AXES, *map(metric, ("mean_step_s", "peak_device_bytes", "verdict")))
_DOCUMENT: tuple[Column[RelativeRow], ...] = (
    *(column.of(_OWN) for column in _SIDE),
    *(column.of(_COUNTERPART, "against_") for column in _SIDE),
    *_interval("time", lambda row: row.time),
    *_interval("peak", lambda row: row.peak),
    Column("shared_heats", lambda row: row.heats),
)


def _summary(rows: Sequence[RelativeRow]) -> str:
    """Return median and worst of times and peaks; nothing for a single row."""
    peaks = [row.peak for row in rows if row.peak is not None]
    figures = {"time": [row.time for row in rows], "peak": peaks}
    return "; ".join(_spread(name, ratios) for name, ratios in figures.items() if len(ratios) > 1)


def _spread(name: str, ratios: Sequence[Ratio]) -> str:
    median = statistics.median(ratio.value for ratio in ratios)
    above = f"the whole interval is above 1 in {sum(r.low > 1 for r in ratios)} of {len(ratios)} rows"
    return f"{name} {median:.2f} in the median, {ratio_text(max(ratios))} at most, {above}"


def lonely_line(relative: Relative) -> str:
    """Return a line of the configurations without a counterpart; empty if all have one."""
    lonely = [axes_text(summary.axes) for summary in relative.lonely]
    more = f" and {len(lonely) - _MOST_NAMED} more" if len(lonely) > _MOST_NAMED else ""
    return f"without a counterpart: {'; '.join(lonely[:_MOST_NAMED])}{more}" if lonely else ""


def print_relative(screen: Screen, relative: Relative) -> None:
    """Print the tables, and the configurations without a counterpart."""
    for table in relative_tables(relative):
        screen.print(Text(table.caption, "bold"))
        print_table(screen, table, dropped_first=_DROPPED_FIRST, pinned=("verdict",))
        screen.print(f"{table.below}\n", soft_wrap=True)
    if line := lonely_line(relative):
        screen.print(line, soft_wrap=True)


def relative_documents(relative: Relative) -> list[dict[str, Any]]:
    """Return each row as plain values, under the same names in JSON and CSV."""
    return DataTable(_DOCUMENT, relative.rows).documents()
