"""The charts of a report: throughput against memory, and charts with one row per configuration."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbench.analysis.compare import Comparison
from zbench.analysis.decision import Decision
from zbench.analysis.ranking import pareto_front
from zbench.analysis.rows import Row
from zbench.report.exports import texts
from zbench.report.html import axes as scales
from zbench.report.html import style
from zbench.report.html.drawing import Canvas, Legend, Picture
from zbench.report.text import label, plural, short_label
from zbench.units import format_bytes, format_seconds

_MARKERS = {"identical": "o", "equivalent": "D", "drifted": "^", "wrong": "X", "unchecked": "s"}
"""A shape for each verdict, so that no reader needs its colour."""

HOST = "host_"
"""Prefix of the memory categories of offloaded host memory."""

_NUMBERED = 9
_MOST_DOTS = 24
_SCATTER_HEIGHT = 380
_ROW, _TALL_ROW, _AXIS = 46, 58, 34
_WIDEST_CHANGE = math.log(2)


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration: its label, peak memory in bytes, rate and verdict.

    obstacles: why it cannot be the best, empty where it is correct and within the constraints. hover: what is
    shown when the pointer is on it. throughput: the rate with its unit. is_recommended: as in the table.
    repeats: the rate of each repeat.
    """

    label: str
    peak_bytes: float
    rate: float
    verdict: str
    obstacles: tuple[str, ...] = ()
    hover: str = ""
    throughput: str = ""
    is_recommended: bool = False
    repeats: Sequence[float] = ()


def front_of(points: Sequence[Point]) -> list[Point]:
    """Return the feasible configurations that none beats in throughput and memory, the smallest first."""
    able = {i: point for i, point in enumerate(points) if not point.obstacles}
    values = {i: (point.rate, point.peak_bytes) for i, point in able.items()}
    front = [able[i] for i in pareto_front(values, ("maximize", "minimize"))]
    unique = {(point.peak_bytes, point.rate): point for point in reversed(front)}
    return sorted(unique.values(), key=lambda point: (point.peak_bytes, point.rate))


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One row of a chart: long and short label, and the text shown on hover."""

    label: str
    short: str
    hover: str


Parts = tuple[ChartRow, Mapping[str, float]]
"""A row and its parts by name: bytes by category, or seconds by phase."""


def part_names(rows: Sequence[Parts]) -> list[str]:
    """Return all names of parts in order of first appearance."""
    return list(dict.fromkeys(name for _, parts in rows for name in parts))


def throughput_against_memory(
    points: Sequence[Point], memory: str, rate: str, limit: float | None, tied: str
) -> Picture:
    """Return the scatter chart; up and to the left is better. limit: the most memory allowed, in bytes.

    memory, rate: the names of the axes. tied: with how many others the recommended one (in a
    ring) is tied, in words.
    """
    front = front_of(points)
    leader = "None is both correct and within the constraints."
    for point in points:
        if point.is_recommended:
            name = f"{point.label} (recommended, {tied})" if tied else f"The best, {point.label},"
            leader = f"{name} trains {point.throughput} with {format_bytes(point.peak_bytes)}."

    def paint(canvas: Canvas) -> None:
        axes, unit = canvas.axes, scales.readable([point.peak_bytes for point in points], scales.BYTES)
        for point in sorted(points, key=lambda point: point in front):
            role, x = style.VERDICTS[point.verdict], point.peak_bytes / unit.size
            (mark,) = axes.plot(
                x, point.rate, _MARKERS[point.verdict], markersize=11,
                color=style.LIGHT[role], markeredgecolor=style.LIGHT["card"], zorder=3,
                alpha=0.35 if point.obstacles else 0.95, clip_on=False,
            )  # fmt: skip
            canvas.hover(mark, point.hover or point.label)
            axes.plot([x] * len(point.repeats), point.repeats, color=style.LIGHT[role], zorder=2)
            if point.is_recommended:
                axes.plot(x, point.rate, "o", ms=19, mfc="none", color=style.LIGHT["ink"], clip_on=False)
        for here, there in pairwise(front):
            axes.plot(
                [here.peak_bytes / unit.size, there.peak_bytes / unit.size, there.peak_bytes / unit.size],
                [here.rate, here.rate, there.rate],
                color=style.LIGHT["muted"], linewidth=1.5, linestyle="--", zorder=2,
            )  # fmt: skip
        scales.scatter(canvas, unit.name, f"{memory}, less is better", f"{rate}, more is better")
        scales.limit_line(canvas, limit, unit)
        if len(front) <= _NUMBERED:
            scales.numbers(canvas, [(point.peak_bytes / unit.size, point.rate) for point in front])

    legend = tuple(
        (role, verdict)
        for verdict, role in style.VERDICTS.items()
        if any(p.verdict == verdict for p in points)
    )
    description = f"{plural(len(points), 'configuration')}. {leader}"
    return Picture(
        "throughput-memory", "Throughput against memory", description, _SCATTER_HEIGHT, paint, legend
    )


Steps = tuple[ChartRow, Sequence[float], Sequence[float]]
"""A row, the seconds of all its timed steps, and the median step of each repeat."""


def step_times(rows: Sequence[Steps]) -> Picture:
    """Return the step times: steps as dots, the middle half as a band, the median of the repeats as a line.

    A thin line is drawn from the least to the largest of the repeats' medians.
    """
    unit = scales.readable([seconds for _, samples, _ in rows for seconds in samples], scales.SECONDS)
    medians = [statistics.median(repeats) for _, _, repeats in rows]

    def spread(canvas: Canvas, index: int) -> None:
        ordered, y = sorted(value / unit.size for value in rows[index][1]), index + scales.BAR_MIDDLE
        middle, repeats = medians[index] / unit.size, [value / unit.size for value in rows[index][2]]
        low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
        canvas.axes.barh(y, high - low, left=low, height=0.26, color=style.LIGHT["s1"], alpha=0.3)
        if not canvas.narrow:
            dots = ordered[:: -(-len(ordered) // _MOST_DOTS)]
            canvas.axes.plot(dots, [y] * len(dots), "o", markersize=3.5, color=style.LIGHT["ink"], alpha=0.4)
        canvas.axes.plot(repeats, [y] * len(repeats), color=style.LIGHT["s1"], linewidth=1.5)
        canvas.axes.plot([middle, middle], [y - 0.19, y + 0.19], color=style.LIGHT["s1"], linewidth=3)

    description = (
        f"{plural(len(rows), 'configuration')}; their median steps take from "
        f"{format_seconds(min(medians))} to {format_seconds(max(medians))}."
    )
    labelled = [(row, format_seconds(middle)) for (row, *_), middle in zip(rows, medians, strict=True)]
    return _chart_of_rows("step-times", "Step times", description, labelled, spread, unit.name)


def memory(rows: Sequence[Parts], limit: float | None) -> Picture:
    """Return memory by category (bytes) at the peak: of the device above, of the host below, on one scale.

    The host's categories have the colours of the device's: the same thing, elsewhere.
    """
    names = sorted(part_names(rows), key=lambda name: name.startswith(HOST))
    names = list(dict.fromkeys(name.removeprefix(HOST) for name in names))
    stacks = [
        [[parts.get(prefix + name, 0.0) for name in names] for prefix in ("", HOST)] for _, parts in rows
    ]
    totals = [(sum(device), sum(host)) for device, host in stacks]
    unit = scales.readable([total for pair in totals for total in pair], scales.BYTES)

    def bars(canvas: Canvas, index: int) -> None:
        device, host = stacks[index]
        _bar(canvas, index + 0.55, device, unit.size)
        _bar(canvas, index + 0.83, host, unit.size, alpha=0.55)

    figures = [
        format_bytes(device) + (f" + {format_bytes(host)} host" if host else "") for device, host in totals
    ]
    least, most = (format_bytes(pick(device for device, _ in totals)) for pick in (min, max))
    description = (
        f"{plural(len(rows), 'configuration')}: upper bars are device memory ({least} to {most}), "
        "lower and paler bars host memory that offload uses."
    )
    return _chart_of_rows(
        "memory", "Device and host memory at the peak", description,
        [(row, figure) for (row, _), figure in zip(rows, figures, strict=True)],
        bars, unit.name, height=_TALL_ROW, legend=_legend(names),
        finish=lambda canvas: scales.limit_line(canvas, limit, unit),
    )  # fmt: skip


def phases(rows: Sequence[Parts]) -> Picture:
    """Return the time of each phase of a step (seconds), stacked."""
    names = part_names(rows)
    totals = [sum(parts.values()) for _, parts in rows]
    unit = scales.readable(totals, scales.SECONDS)

    def bar(canvas: Canvas, index: int) -> None:
        _, parts = rows[index]
        _bar(canvas, index + scales.BAR_MIDDLE, [parts.get(name, 0.0) for name in names], unit.size)

    description = (
        f"{plural(len(rows), 'configuration')}, from {format_seconds(min(totals))} to "
        f"{format_seconds(max(totals))} per step."
    )
    labelled = [(row, format_seconds(total)) for (row, _), total in zip(rows, totals, strict=True)]
    legend = _legend(names)
    return _chart_of_rows("phases", "Phases of a step", description, labelled, bar, unit.name, legend=legend)


def changes(comparison: Comparison, rows: Sequence[tuple[Row, Decision]]) -> Picture:
    """Return every change of step time with its interval; beyond the dashed margin a slowdown counts."""
    margin = math.expm1(rows[0][1].margin)

    def interval(canvas: Canvas, index: int) -> None:
        decision = rows[index][1]
        y, colour = index + scales.BAR_MIDDLE, style.LIGHT[style.ANSWERS[decision.answer]]
        # an unknown bound (of a log-ratio) ends at a factor of two
        shown = [max(-_WIDEST_CHANGE, min(_WIDEST_CHANGE, x)) for x in (decision.low, decision.high)]
        canvas.axes.plot([100 * math.expm1(x) for x in shown], [y, y], color=colour, linewidth=3, alpha=0.55)
        canvas.axes.plot(100 * decision.change, y, "o", color=colour, markersize=8)

    def lines(canvas: Canvas) -> None:
        canvas.axes.axvline(0, color=style.LIGHT["muted"], linewidth=1.5, zorder=1)
        canvas.axes.axvline(100 * margin, color=style.LIGHT["bad"], linewidth=1.5, linestyle="--", zorder=1)

    labelled = []
    for row, decision in rows:
        figure, name = texts.interval(decision), label(row.base)
        hover = f"{name}\n{figure}\n{decision.answer}"
        labelled.append((ChartRow(name, short_label(row.base), hover), figure))
    slower = sum(decision.answer == "regression" for _, decision in rows)
    description = (
        f"{plural(len(rows), 'configuration')} against {comparison.base.name}: {slower} slower by more than "
        f"{100 * margin:.3g} %."
    )
    title = "Change of step time against the baseline"
    return _chart_of_rows("changes", title, description, labelled, interval, "%", finish=lines)


def importance(shares: Mapping[str, float]) -> Picture:
    """Return how much of the objective's variation each searched axis explains, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])

    def paint(canvas: Canvas) -> None:
        scales.rows(canvas, [(axis, axis, f"{share:.0%}") for axis, share in ordered])
        for index, (axis, share) in enumerate(ordered):
            canvas.axes.barh(index + scales.BAR_MIDDLE, share, height=0.3, color=style.LIGHT["s1"])
            canvas.hover(scales.hover_area(canvas.axes, index), f"{axis}: {share:.1%}")
        canvas.axes.set_xlim(0, max(1e-3, ordered[0][1]))
        canvas.axes.set_ylim(len(ordered), 0)
        canvas.axes.axis("off")

    description = f"{ordered[0][0]} matters most, with {ordered[0][1]:.0%}."
    return Picture("importance", "What mattered in the search", description, _ROW * len(ordered), paint)


def _chart_of_rows(
    name: str,
    title: str,
    description: str,
    rows: Sequence[tuple[ChartRow, str]],
    draw: Callable[[Canvas, int], None],
    unit: str,
    *,
    height: int = _ROW,
    legend: Legend = (),
    finish: Callable[[Canvas], None] = lambda _: None,
) -> Picture:
    """Return a chart of rows, each with the figure at its right; `draw` draws the row of an index."""

    def paint(canvas: Canvas) -> None:
        scales.rows(canvas, [(row.label, row.short, figure) for row, figure in rows])
        for index, (row, _) in enumerate(rows):
            draw(canvas, index)
            canvas.hover(scales.hover_area(canvas.axes, index), row.hover)
        scales.below(canvas, unit, len(rows))
        finish(canvas)

    return Picture(name, title, description, height * len(rows) + _AXIS, paint, legend)


def _bar(canvas: Canvas, y: float, parts: Sequence[float], size: float, alpha: float = 1.0) -> None:
    start = 0.0
    for index, part in enumerate(parts):
        if part > 0:
            canvas.axes.barh(
                y, part / size, left=start, height=0.24, color=style.LIGHT[style.series(index)], alpha=alpha,
                edgecolor=style.LIGHT["card"], linewidth=1,
            )  # fmt: skip
            start += part / size


def _legend(names: Sequence[str]) -> Legend:
    return tuple((style.series(index), name) for index, name in enumerate(names))
