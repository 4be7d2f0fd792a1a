"""Charts with one row a configuration: its label, a figure at the right, and a bar below both."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zbench.report.html import style
from zbench.report.html.chart import Legend, Picture, Scale, binary_ticks, vertical_grid
from zbench.report.html.markup import Markup, join, tag
from zbench.units import format_bytes, format_seconds

ROW = 46
_BAR_TOP, _BAR_HEIGHT = 20, 12
BAR_MIDDLE = _BAR_TOP + _BAR_HEIGHT / 2
_BAR = {"y": _BAR_TOP, "height": _BAR_HEIGHT}
_AXIS = 24
_MOST_DOTS = 80


@dataclass(frozen=True, slots=True)
class Name:
    """What a row is called where there is room, and where there is little."""

    full: str
    short: str


def row_chart(
    name: str,
    title: str,
    description: str,
    rows: Sequence[tuple[Name, str, Markup]],
    axis: Callable[[float], Markup] | None = None,
    legend: Legend = (),
) -> Picture:
    """Return a picture of rows: name, figure and marks, which are drawn with 0 at the row's top."""
    height = ROW * len(rows)
    drawn = [
        tag(
            "g",
            tag("text", called.full, x=0, y=13, class_="ink full"),
            tag("text", called.short, x=0, y=13, class_="ink short"),
            tag("text", figure, x="100%", y=13, text_anchor="end"),
            marks,
            transform=f"translate(0 {index * ROW})",
        )
        for index, (called, figure, marks) in enumerate(rows)
    ]
    below = join(axis(height), *drawn) if axis else join(*drawn)
    return Picture(name, title, description, height + (_AXIS if axis else 0), below, legend)


def step_times(rows: Sequence[tuple[Name, Sequence[float]]]) -> Picture:
    """Return the step times (seconds): every step a dot, the middle half a band, the median a line."""
    scale = Scale.around([seconds for _, samples in rows for seconds in samples])
    drawn = [
        (called, format_seconds(statistics.median(samples)), _spread(scale, samples))
        for called, samples in rows
    ]
    medians = [statistics.median(samples) for _, samples in rows]
    description = (
        f"{len(rows)} configurations; their median steps lie from {format_seconds(min(medians))} "
        f"to {format_seconds(max(medians))}."
    )
    return row_chart(
        "step-times",
        "Step times",
        description,
        drawn,
        lambda height: vertical_grid(scale, scale.ticks(), height, format_seconds),
    )


def _spread(scale: Scale, samples: Sequence[float]) -> Markup:
    ordered = sorted(samples)
    middle = statistics.median(ordered)
    low, _, high = (
        statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [middle] * 3
    )
    wide = scale.width(scale.share(high) - scale.share(low))
    stride = max(1, len(ordered) // _MOST_DOTS)
    dots = [
        tag("circle", cx=scale.percent(value), cy=BAR_MIDDLE, r=2, class_="dot")
        for value in ordered[::stride]
    ]
    bar: dict[str, str | float] = {"x": scale.percent(low), "width": f"{max(wide, 0.2):.2f}%"}
    band = tag("rect", **bar, **_BAR, rx=2, class_="range")
    x = scale.percent(middle)
    line = tag("line", x1=x, x2=x, y1=_BAR_TOP - 2, y2=_BAR_TOP + _BAR_HEIGHT + 2, class_="median")
    told = f"median {format_seconds(middle)}, middle half {format_seconds(low)} to {format_seconds(high)}"
    return tag("g", tag("title", told), band, *dots, line)


Parts = Sequence[tuple[Name, Mapping[str, float]]]
"""Each configuration's parts by name."""


def memory(rows: Parts, categories: Sequence[str]) -> Picture:
    """Return peak memory by category (bytes), stacked."""
    scale = _from_zero(rows)
    drawn = [
        (called, format_bytes(sum(parts.values())), _stack(scale, parts, categories, format_bytes))
        for called, parts in rows
    ]
    description = f"{len(rows)} configurations, {_range(rows, format_bytes)}."
    return row_chart(
        "memory",
        "Memory by category at the peak",
        description,
        drawn,
        lambda height: vertical_grid(scale, binary_ticks(scale), height, format_bytes),
        legend_of(categories),
    )


def phases(rows: Parts, names: Sequence[str]) -> Picture:
    """Return the time of each phase of a step (seconds), stacked."""
    scale = _from_zero(rows)
    drawn = [
        (called, format_seconds(sum(parts.values())), _stack(scale, parts, names, format_seconds))
        for called, parts in rows
    ]
    description = f"{len(rows)} configurations, {_range(rows, format_seconds)} a step."
    return row_chart(
        "phases",
        "Phases of a step",
        description,
        drawn,
        lambda height: vertical_grid(scale, scale.ticks(), height, format_seconds),
        legend_of(names),
    )


def _from_zero(rows: Parts) -> Scale:
    return Scale(0.0, max(sum(parts.values()) for _, parts in rows), edge=0.0)


def _range(rows: Parts, form: Callable[[float], str]) -> str:
    totals = [sum(parts.values()) for _, parts in rows]
    return f"from {form(min(totals))} to {form(max(totals))}"


def _stack(
    scale: Scale, values: Mapping[str, float], parts: Sequence[str], form: Callable[[float], str]
) -> Markup:
    marks, start = [], 0.0
    for index, part in enumerate(parts):
        value = values.get(part, 0.0)
        if value > 0:
            x, width = (100 * scale.share(v) for v in (start, value))
            bar: dict[str, str | float] = {"x": f"{x:.3f}%", "width": f"{width:.3f}%"}
            told = tag("title", f"{part}: {form(value)}")
            marks.append(tag("rect", told, **bar, **_BAR, class_=f"part {series(index)}"))
            start += value
    return join(*marks)


def importance(shares: Mapping[str, float]) -> Picture:
    """Return how much of the objective's variation each searched axis explains, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    scale = Scale(0.0, max(*shares.values(), 0.01), edge=0.0)
    drawn = [
        (Name(axis, axis), f"{share:.0%}", _stack(scale, {axis: share}, [axis], lambda value: f"{value:.0%}"))
        for axis, share in ordered
    ]
    description = f"{ordered[0][0]} matters most, with {ordered[0][1]:.0%}."
    return row_chart("importance", "What mattered in the search", description, drawn)


def legend_of(names: Sequence[str]) -> Legend:
    """Return the style class of each part's colour, with its name."""
    return tuple((series(index), name) for index, name in enumerate(names))


def series(index: int) -> str:
    """Return the style class of the index-th part; parts beyond the palette share its last, grey one."""
    return style.SERIES[min(index, len(style.SERIES) - 1)]
