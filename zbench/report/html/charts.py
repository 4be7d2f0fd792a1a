"""The charts of a report: throughput against memory, and charts with one row per configuration."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from zbench.report.html import axes as scales
from zbench.report.html import style
from zbench.report.html.drawing import Canvas, Legend, Picture
from zbench.report.html.front import Point, fastest, front_of
from zbench.report.text import plural, rate_text
from zbench.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.artist import Artist

_MARKERS = {"identical": "o", "equivalent": "D", "drifted": "^", "wrong": "X", "unchecked": "s"}
"""A shape for each verdict, so that it is told without colour too."""

_NUMBERED = 9
_MOST_DOTS = 24
_SCATTER_HEIGHT = 380
_ROW, _TALL_ROW, _AXIS = 46, 58, 34


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One row of a chart: long and short label, the figure at its right, and the text shown on hover."""

    label: str
    short: str
    hover: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A row's parts by name, for one bar or two (device memory above host memory)."""

    row: ChartRow
    parts: Mapping[str, float]
    second: Mapping[str, float] | None = None


def throughput_against_memory(points: Sequence[Point], memory: str, limit: float | None) -> Picture:
    """Return the scatter chart; up and to the left is better. limit: the most memory allowed, in bytes."""
    front, best = front_of(points), fastest(points)
    told = (
        f"The fastest that is correct and within the constraints, {best.label}, trains "
        f"{rate_text(best.tokens_per_s)} tokens/s with {format_bytes(best.peak_bytes)}."
        if best
        else "None is both correct and within the constraints."
    )

    def paint(canvas: Canvas) -> None:
        axes, unit = canvas.axes, scales.byte_unit([point.peak_bytes for point in points])
        for point in sorted(points, key=lambda point: point in front):
            role = style.VERDICTS[point.verdict]
            (mark,) = axes.plot(
                point.peak_bytes / unit.size, point.tokens_per_s, _MARKERS[point.verdict], markersize=11,
                color=style.LIGHT[role], markeredgecolor=style.LIGHT["card"], zorder=3,
                alpha=0.35 if point.obstacles else 0.95, clip_on=False,
            )  # fmt: skip
            canvas.hover(mark, point.hover or point.label)
        for here, there in pairwise(front):
            axes.plot(
                [here.peak_bytes / unit.size, there.peak_bytes / unit.size, there.peak_bytes / unit.size],
                [here.tokens_per_s, here.tokens_per_s, there.tokens_per_s],
                color=style.LIGHT["muted"], linewidth=1.5, linestyle="--", zorder=2,
            )  # fmt: skip
        scales.scatter(canvas, unit.name, f"{memory}, less is better", "tokens/s, more is better")
        scales.limit_line(canvas, limit, unit)
        if len(front) <= _NUMBERED:
            scales.numbers(canvas, [(point.peak_bytes / unit.size, point.tokens_per_s) for point in front])

    legend = tuple(
        (role, verdict)
        for verdict, role in style.VERDICTS.items()
        if any(p.verdict == verdict for p in points)
    )
    description = f"{plural(len(points), 'configuration')}. {told}"
    return Picture(
        "throughput-memory", "Throughput against memory", description, _SCATTER_HEIGHT, paint, legend
    )


def step_times(rows: Sequence[tuple[ChartRow, Sequence[float]]]) -> Picture:
    """Return the step times (seconds): steps as dots, the middle half as a band, the median as a line."""
    unit = scales.second_unit([seconds for _, samples in rows for seconds in samples])
    medians = [statistics.median(samples) for _, samples in rows]

    def paint(canvas: Canvas) -> None:
        labels = [(row, format_seconds(middle)) for (row, _), middle in zip(rows, medians, strict=True)]
        scales.rows(canvas, [(row.label, row.short, figure) for row, figure in labels])
        for index, (row, samples) in enumerate(rows):
            canvas.hover(_spread(canvas, index, [value / unit.size for value in samples]), row.hover)
        scales.below(canvas, unit.name, len(rows))

    description = (
        f"{plural(len(rows), 'configuration')}; their median steps take from "
        f"{format_seconds(min(medians))} to {format_seconds(max(medians))}."
    )
    return Picture("step-times", "Step times", description, _ROW * len(rows) + _AXIS, paint)


def _spread(canvas: Canvas, index: int, samples: Sequence[float]) -> "Artist":
    """Draw one row's samples; return the band that the pointer meets."""
    ordered, axes = sorted(samples), canvas.axes
    middle = statistics.median(ordered)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    y = index + scales.BAR_MIDDLE
    axes.barh(y, high - low, left=low, height=0.26, color=style.LIGHT["s1"], alpha=0.3)
    if not canvas.narrow:
        dots = ordered[:: -(-len(ordered) // _MOST_DOTS)]
        axes.plot(dots, [y] * len(dots), "o", markersize=3.5, color=style.LIGHT["ink"], alpha=0.4)
    axes.plot([middle, middle], [y - 0.19, y + 0.19], color=style.LIGHT["s1"], linewidth=3)
    return scales.hover_area(axes, index)


def memory(rows: Sequence[Stack], categories: Sequence[str], limit: float | None) -> Picture:
    """Return memory by category (bytes) at the peak: of the device above, of the host below, on one scale."""
    totals = [(sum(stack.parts.values()), sum((stack.second or {}).values())) for stack in rows]
    unit = scales.byte_unit([total for pair in totals for total in pair])

    def paint(canvas: Canvas) -> None:
        figures = [
            format_bytes(device) + (f" + {format_bytes(host)} host" if host else "")
            for device, host in totals
        ]
        scales.rows(canvas, [(s.row.label, s.row.short, f) for s, f in zip(rows, figures, strict=True)])
        for index, stack in enumerate(rows):
            _stack(canvas, index + 0.55, stack.parts, categories, unit.size)
            _stack(canvas, index + 0.83, stack.second or {}, categories, unit.size, alpha=0.55)
            canvas.hover(scales.hover_area(canvas.axes, index), stack.row.hover)
        scales.below(canvas, unit.name, len(rows))
        scales.limit_line(canvas, limit, unit)

    least, most = (format_bytes(pick(device for device, _ in totals)) for pick in (min, max))
    description = (
        f"{plural(len(rows), 'configuration')}: upper bars are device memory ({least} to {most}), "
        "lower and paler bars host memory that offload uses."
    )
    height = _TALL_ROW * len(rows) + _AXIS
    return Picture(
        "memory", "Device and host memory at the peak", description, height, paint, _legend(categories)
    )


def phases(rows: Sequence[Stack], names: Sequence[str]) -> Picture:
    """Return the time of each phase of a step (seconds), stacked."""
    totals = [sum(stack.parts.values()) for stack in rows]
    unit = scales.second_unit(totals)

    def paint(canvas: Canvas) -> None:
        labels = [(s.row.label, s.row.short, format_seconds(t)) for s, t in zip(rows, totals, strict=True)]
        scales.rows(canvas, labels)
        for index, stack in enumerate(rows):
            _stack(canvas, index + scales.BAR_MIDDLE, stack.parts, names, unit.size)
            canvas.hover(scales.hover_area(canvas.axes, index), stack.row.hover)
        scales.below(canvas, unit.name, len(rows))

    description = (
        f"{plural(len(rows), 'configuration')}, from {format_seconds(min(totals))} to "
        f"{format_seconds(max(totals))} per step."
    )
    height = _ROW * len(rows) + _AXIS
    return Picture("phases", "Phases of a step", description, height, paint, _legend(names))


def importance(shares: Mapping[str, float]) -> Picture:
    """Return how much of the objective's variation each searched axis explains, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])

    def paint(canvas: Canvas) -> None:
        scales.rows(canvas, [(axis, axis, f"{share:.0%}") for axis, share in ordered])
        for index, (axis, share) in enumerate(ordered):
            canvas.axes.barh(index + scales.BAR_MIDDLE, share, height=0.3, color=style.LIGHT["s1"])
            canvas.hover(scales.hover_area(canvas.axes, index), f"{axis}: {share:.1%}")
        scales.plain(canvas, len(ordered), max(1e-3, ordered[0][1]))

    description = f"{ordered[0][0]} matters most, with {ordered[0][1]:.0%}."
    return Picture("importance", "What mattered in the search", description, _ROW * len(ordered), paint)


def _stack(
    canvas: Canvas,
    y: float,
    parts: Mapping[str, float],
    names: Sequence[str],
    size: float,
    alpha: float = 1.0,
) -> None:
    start = 0.0
    for index, name in enumerate(names):
        value = parts.get(name, 0.0) / size
        if value > 0:
            canvas.axes.barh(
                y, value, left=start, height=0.24, color=style.LIGHT[style.series(index)], alpha=alpha,
                edgecolor=style.LIGHT["card"], linewidth=1,
            )  # fmt: skip
            start += value


def _legend(names: Sequence[str]) -> Legend:
    return tuple((style.series(index), name) for index, name in enumerate(names))
