"""Throughput against memory: every configuration a mark, its verdict colour and shape, the front a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbench.analysis.pareto import pareto_front
from zbench.report.html.chart import Picture, Scale, binary_ticks, vertical_grid
from zbench.report.html.markup import Markup, join, tag
from zbench.report.text import rate_text
from zbench.units import format_bytes

HEIGHT = 320
_MOST_NUMBERS = 9
_SHAPES = {
    "identical": "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0Z",
    "equivalent": "M0,-6.5L6.5,0L0,6.5L-6.5,0Z",
    "drifted": "M0,-6.5L6.5,5L-6.5,5Z",
    "wrong": "M-5,-3L-3,-5L0,-2L3,-5L5,-3L2,0L5,3L3,5L0,2L-3,5L-5,3L-2,0Z",
    "unchecked": "M-5,-5H5V5H-5Z",
}
"""A shape for each verdict, so that it is told without colour too; drawn around the point."""


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration: its words, peak memory in bytes, tokens a second and verdict."""

    label: str
    peak_bytes: float
    tokens_per_s: float
    verdict: str


def front_of(points: Sequence[Point]) -> list[Point]:
    """Return the correct configurations that none beats in both throughput and memory, the smallest first."""
    correct = {i: point for i, point in enumerate(points) if point.verdict in ("identical", "equivalent")}
    values = {i: (point.tokens_per_s, point.peak_bytes) for i, point in correct.items()}
    found = [correct[i] for i in pareto_front(values, ("maximize", "minimize"))]
    unique = {(point.peak_bytes, point.tokens_per_s): point for point in reversed(found)}
    return sorted(unique.values(), key=lambda point: (point.peak_bytes, point.tokens_per_s))


def throughput_against_memory(points: Sequence[Point], memory_name: str) -> Picture:
    """Return the picture; up and to the left is better. Its front is numbered from the smallest on."""
    across = Scale.around([point.peak_bytes for point in points], room=0.08)
    up = Scale.around([point.tokens_per_s for point in points], room=0.12)
    front = front_of(points)
    marks = [
        _horizontal_grid(up),
        vertical_grid(across, binary_ticks(across), HEIGHT, format_bytes),
        *_front_line(front, across, up),
        *(_mark(point, across, up) for point in sorted(points, key=lambda point: point in front)),
        *_numbers(front, across, up),
        tag("text", f"{memory_name} (less is better)", x="100%", y=HEIGHT + 36, text_anchor="end"),
        tag("text", "tokens/s (more is better)", x=0, y=-6),
    ]
    best = max(points, key=lambda point: point.tokens_per_s)
    description = (
        f"{len(points)} configurations. The fastest, {best.label}, trains {rate_text(best.tokens_per_s)} "
        f"tokens a second with {format_bytes(best.peak_bytes)}; none beats {len(front)} of them in both."
    )
    return Picture("throughput-memory", "Throughput against memory", description, HEIGHT + 44, join(*marks))


def _y(up: Scale, value: float) -> float:
    return HEIGHT * (1 - up.share(value))


def _horizontal_grid(up: Scale) -> Markup:
    lines = [
        join(
            tag("line", x1=0, x2="100%", y1=_y(up, tick), y2=_y(up, tick), class_="grid"),
            tag("text", rate_text(tick), x=0, y=_y(up, tick) - 4),
        )
        for tick in up.ticks()
    ]
    return join(*lines, tag("line", x1=0, x2="100%", y1=HEIGHT, y2=HEIGHT, class_="axis"))


def _front_line(front: Sequence[Point], across: Scale, up: Scale) -> list[Markup]:
    """Return the front as steps: between two points the smaller one's throughput is what can be had."""
    lines = []
    for here, there in pairwise(front):
        x1, x2 = across.percent(here.peak_bytes), across.percent(there.peak_bytes)
        y1, y2 = _y(up, here.tokens_per_s), _y(up, there.tokens_per_s)
        lines.append(tag("line", x1=x1, x2=x2, y1=y1, y2=y1, class_="front"))
        lines.append(tag("line", x1=x2, x2=x2, y1=y1, y2=y2, class_="front"))
    return lines


def _mark(point: Point, across: Scale, up: Scale) -> Markup:
    figures = f"{rate_text(point.tokens_per_s)} tokens/s, {format_bytes(point.peak_bytes)}"
    told = f"{point.label}: {figures}, {point.verdict}"
    path = tag("path", tag("title", told), d=_SHAPES[point.verdict], class_=point.verdict, fill_opacity=0.85)
    return tag(
        "svg", path, x=across.percent(point.peak_bytes), y=_y(up, point.tokens_per_s), overflow="visible"
    )


def _numbers(front: Sequence[Point], across: Scale, up: Scale) -> list[Markup]:
    """Number the front's points, unless there are so many that numbers would cover each other."""
    if len(front) > _MOST_NUMBERS:
        return []
    return [
        tag(
            "svg",
            tag("text", str(number), x=0, y=-10, text_anchor="middle", class_="strong"),
            x=across.percent(point.peak_bytes),
            y=_y(up, point.tokens_per_s),
            overflow="visible",
        )
        for number, point in enumerate(front, start=1)
    ]


def shape(verdict: str) -> Markup:
    """Return a verdict's mark for a legend."""
    path = tag("path", d=_SHAPES[verdict], class_=verdict)
    return tag(
        "svg", path, width=14, height=14, viewBox="-7 -7 14 14", aria_hidden="true", style="display: inline"
    )
