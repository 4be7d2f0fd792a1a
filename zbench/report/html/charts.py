"""The sections of a report: its charts, each with the figures behind it."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from zbench.analysis.ranking import pareto_front
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, known_rate, obstacles
from zbench.report import roles
from zbench.report.answer import effect_text
from zbench.report.columns import CONFIGURATION, Column, DataTable
from zbench.report.exports import texts
from zbench.report.html import axes as scales
from zbench.report.html import style
from zbench.report.html.content import (
    MOST_ROWS,
    Report,
    Section,
    categories,
    hover_text,
)
from zbench.report.html.drawing import Canvas, Legend, Picture
from zbench.report.text import (
    figure_text,
    label,
    plural,
    printable,
    short_label,
    throughput_text,
)
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import ObjectiveSpec
from zbench.units import format_bytes, format_seconds

_MARKERS = {"identical": "o", "equivalent": "D", "drifted": "^", "wrong": "X", "unchecked": "s"}
"""A shape for each verdict, so that no reader needs its colour."""

_HOST = "host_"
"""Prefix of the memory categories of offloaded host memory."""

_MOST_POINTS = 200
_MOST_DOTS = 24
_SCATTER_HEIGHT = 380
_ROW, _TALL_ROW, _AXIS = 46, 58, 34
_WIDEST_CHANGE = math.log(2)
_WIDEST_FACTOR = 2

Parts = Mapping[str, float]
"""Bytes by category, or seconds by phase."""

Row = tuple[ConfigSummary | str, str]
"""A row of a chart: its configuration, or what it is called, and the figure at its right."""


def sections(report: Report) -> list[Section]:
    """Return every chart that the records have data for, with its figures, in the page's order."""
    builders = (throughput_against_memory, effects, changes, step_times, memory, phases)
    return [section for build in builders if (section := build(report)) is not None]


class Position(NamedTuple):
    """A configuration's point in the chart: its peak memory in bytes, and its rate."""

    trial: ConfigSummary
    peak: float
    rate: float


def places(report: Report) -> list[Position]:
    """Return the points of all configurations of which peak and rate are known."""
    metric = report.memory_metric
    rate = known_rate(report.finished)
    both = [(trial, trial.number(metric), trial.number(rate)) for trial in report.finished if metric]
    return [
        Position(trial, peak, value) for trial, peak, value in both if peak is not None and value is not None
    ]


def front_of(shown: Sequence[Position], objective: ObjectiveSpec) -> list[Position]:
    """Return the Pareto front of feasible configurations in throughput and memory, the smallest first."""
    able = {i: place for i, place in enumerate(shown) if not obstacles(place.trial, objective)}
    values = {i: (place.rate, place.peak) for i, place in able.items()}
    front = [able[i] for i in pareto_front(values, ("maximize", "minimize"))]
    unique = {(place.peak, place.rate): place for place in reversed(front)}
    return sorted(unique.values(), key=lambda place: (place.peak, place.rate))


def throughput_against_memory(report: Report) -> Section | None:
    """Return the scatter chart; up and to the left is better. The recommended one is in a ring."""
    metric = report.memory_metric
    rate = known_rate(report.finished)
    objective = report.objective
    shown = places(report)[:_MOST_POINTS]
    if metric is None or not shown:
        return None
    front = front_of(shown, objective)
    winner = report.winner
    tied = report.ranking.tied
    unit = scales.readable([place.peak for place in shown], scales.BYTES)

    def paint(canvas: Canvas) -> None:
        axes = canvas.axes
        for place in sorted(shown, key=lambda place: place in front):
            trial = place.trial
            x = place.peak / unit.size
            repeats = place.trial.values(rate)
            colour = style.LIGHT[roles.VERDICTS[trial.verdict]]
            (mark,) = axes.plot(
                x, place.rate, _MARKERS[trial.verdict], markersize=11, color=colour,
                markeredgecolor=style.LIGHT["card"], zorder=3,
                alpha=0.35 if obstacles(trial, objective) else 0.95, clip_on=False,
            )  # fmt: skip
            canvas.hover(mark, hover_text(trial, objective))
            axes.plot([x] * len(repeats), repeats, color=colour, zorder=2)
            if trial is winner:
                axes.plot(x, place.rate, "o", ms=19, mfc="none", color=style.LIGHT["ink"], clip_on=False)
        for here, there in pairwise(front):
            axes.plot(
                [here.peak / unit.size, there.peak / unit.size, there.peak / unit.size],
                [here.rate, here.rate, there.rate],
                color=style.LIGHT["muted"], linewidth=1.5, linestyle="--", zorder=2,
            )  # fmt: skip
        scales.scatter(canvas, unit.name, f"{METRICS[metric].description} Less is better",
                       f"{METRICS[rate].title}, more is better")  # fmt: skip
        scales.limit_line(canvas, report.limit(metric), unit)

    leader = "None is both correct and within the constraints."
    if winner is not None:
        name = f"{label(winner)} (recommended, {tied})" if tied else f"The best, {label(winner)},"
        leader = f"{name} trains {throughput_text(winner)} with {figure_text(winner, metric)}."
    verdicts = {place.trial.verdict for place in shown}
    legend = tuple((role, verdict) for verdict, role in roles.VERDICTS.items() if verdict in verdicts)
    description = f"{plural(len(shown), 'configuration')}. {leader}"
    title = "Throughput against memory"
    picture = Picture("throughput-memory", title, description, _SCATTER_HEIGHT, paint, legend)
    listed = "On the dashed line, from left to right; none beats these in both speed and memory:"
    lines = [f"{label(p.trial)}: {throughput_text(p.trial)}, {format_bytes(p.peak)}" for p in front]
    return Section(picture, listed=listed if front else "", lines=lines)


def effects(report: Report) -> Section | None:
    """Return what each choice costs: the mean over pairs that differ in it alone as a dot, its interval a
    line.
    """
    shown = report.ranking.effects[:MOST_ROWS]
    if not shown:
        return None
    parts = [effect_text(one).split(" against ", 1) for one in shown]
    rows: list[Row] = [(name, f"against {figure.split(';')[0]}") for name, figure in parts]

    def interval(canvas: Canvas, index: int) -> None:
        effect = shown[index]
        y = index + scales.BAR_MIDDLE
        low, high = effect.low, effect.high
        is_sure = low is not None and high is not None and not low <= 0 <= high
        colour = style.LIGHT[("bad" if effect.change > 0 else "good") if is_sure else "none"]
        if low is not None and high is not None:
            ends = [max(low, 1 / _WIDEST_FACTOR - 1), min(high, _WIDEST_FACTOR - 1)]
            canvas.axes.plot([100 * end for end in ends], [y, y], color=colour, linewidth=3, alpha=0.55)
        canvas.axes.plot(100 * effect.change, y, "o", color=colour, markersize=8)

    description = "Each choice against that of the recommended configuration; a pair differs in it alone."
    picture = _chart_of_rows(
        "effects", "What each choice costs", description, rows, interval, "%",
        lambda index: effect_text(shown[index]), finish=_zero_line,
    )  # fmt: skip
    return Section(picture, lines=[effect_text(one) for one in shown])


def changes(report: Report) -> Section | None:
    """Return the chart of step-time changes with intervals; a slowdown beyond the dashed margin counts."""
    comparison = report.comparison
    if comparison is None or not comparison.timed:
        return None
    shown = comparison.timed[:MOST_ROWS]
    margin = math.expm1(shown[0][1].margin)

    def interval(canvas: Canvas, index: int) -> None:
        decision = shown[index][1]
        y = index + scales.BAR_MIDDLE
        colour = style.LIGHT[roles.ANSWERS[decision.answer]]
        # an unknown bound (of a log-ratio) ends at a factor of two
        ends = [max(-_WIDEST_CHANGE, min(_WIDEST_CHANGE, x)) for x in (decision.low, decision.high)]
        canvas.axes.plot([100 * math.expm1(x) for x in ends], [y, y], color=colour, linewidth=3, alpha=0.55)
        canvas.axes.plot(100 * decision.change, y, "o", color=colour, markersize=8)

    def lines(canvas: Canvas) -> None:
        _zero_line(canvas)
        canvas.axes.axvline(100 * margin, color=style.LIGHT["bad"], linewidth=1.5, linestyle="--", zorder=1)

    def hover(index: int) -> str:
        row, decision = shown[index]
        return f"{label(row.base)}\n{texts.interval(decision)}\n{decision.answer}"

    rows = [(row.base, texts.interval(decision)) for row, decision in shown]
    slower = sum(decision.answer == "regression" for _, decision in shown)
    description = (
        f"{plural(len(rows), 'configuration')} against {comparison.base.name}: {slower} slower by more than "
        f"{100 * margin:.3g} %."
    )
    title = "Change of step time against the baseline"
    picture = _chart_of_rows("changes", title, description, rows, interval, "%", hover, finish=lines)
    _, *rest = texts.summary(comparison)
    reasons = [reason for reason, _ in texts.grouped_reasons(comparison.rows)]
    return Section(picture, report.drawn_note, table=texts.table(comparison), lines=[*reasons, *rest])


def _zero_line(canvas: Canvas) -> None:
    canvas.axes.axvline(0, color=style.LIGHT["muted"], linewidth=1.5, zorder=1)


def step_times(report: Report) -> Section | None:
    """Return the step times: steps as dots, the middle half as a band, the median of the repeats as a line.

    A thin line is drawn from the least to the largest of the repeats' medians.
    """
    trials = report.drawn
    if not trials:
        return None
    samples = list(map(_steps, trials))
    repeats = [trial.values("median_step_s") for trial in trials]
    unit = scales.readable([seconds for steps in samples for seconds in steps], scales.SECONDS)
    medians = [statistics.median(values) for values in repeats]

    def spread(canvas: Canvas, index: int) -> None:
        ordered = sorted(value / unit.size for value in samples[index])
        y = index + scales.BAR_MIDDLE
        middle = medians[index] / unit.size
        ends = [value / unit.size for value in repeats[index]]
        low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
        canvas.axes.barh(y, high - low, left=low, height=0.26, color=style.LIGHT["s1"], alpha=0.3)
        if not canvas.narrow:
            dots = ordered[:: -(-len(ordered) // _MOST_DOTS)]
            canvas.axes.plot(dots, [y] * len(dots), "o", markersize=3.5, color=style.LIGHT["ink"], alpha=0.4)
        canvas.axes.plot(ends, [y] * len(ends), color=style.LIGHT["s1"], linewidth=1.5)
        canvas.axes.plot([middle, middle], [y - 0.19, y + 0.19], color=style.LIGHT["s1"], linewidth=3)

    description = (
        f"{plural(len(trials), 'configuration')}; their median steps take from "
        f"{format_seconds(min(medians))} to {format_seconds(max(medians))}."
    )
    rows = list(zip(trials, map(format_seconds, medians), strict=True))
    hover = _about(report, trials)
    picture = _chart_of_rows("step-times", "Step times", description, rows, spread, unit.name, hover)
    return Section(picture, report.drawn_note)


def _steps(trial: ConfigSummary) -> list[float]:
    """Return every timed step of every finished repeat, in seconds."""
    timings = [record.timing for record in trial.ok if record.timing is not None]
    return [seconds for timing in timings for seconds in timing.step_seconds or [timing.median_step_s]]


def memory(report: Report) -> Section | None:
    """Return memory by category at the peak: of the device above, of the host below, on one scale."""
    picture = Stacks(
        "memory", "Device and host memory at the peak", "Bytes by category (host_: offloaded)",
        "{}: upper bars are device memory ({} to {}), lower and paler bars host memory that offload uses.",
        categories, lambda record: record.memory.by_category if record.memory else {}, format_bytes,
        scales.BYTES, ((False, 0.55, 1.0), (True, 0.83, 0.55)), _TALL_ROW,
    )  # fmt: skip
    return _stacked(report, picture, report.limit("peak_device_bytes"))


def phases(report: Report) -> Section | None:
    """Return the time of each phase of a step (seconds), stacked."""
    picture = Stacks(
        "phases", "Phases of a step", "Phases of a step", "{}, from {} to {} per step.",
        lambda trial: trial.phases, lambda record: record.timing.phases if record.timing else {},
        format_seconds, scales.SECONDS, ((False, scales.BAR_MIDDLE, 1.0),), _ROW,
    )  # fmt: skip
    return _stacked(report, picture)


class Stacks(NamedTuple):
    """The data of a chart of stacked parts.

    description: has places for the count, the least and the largest total. parts, of_repeat: the parts of a
    configuration and of one repeat. bars: of each row, whether it is host memory, its place, and its opacity.
    """

    name: str
    title: str
    caption: str
    description: str
    parts: Callable[[ConfigSummary], Parts]
    of_repeat: Callable[[Record], Parts]
    form: Callable[[float], str]
    units: Sequence[scales.Unit]
    bars: Sequence[tuple[bool, float, float]]
    height: int


def _stacked(report: Report, stack: Stacks, limit: float | None = None) -> Section | None:
    """Return a bar of parts for each configuration, with a thin line from the least to the largest repeat.

    A part has the same colour in host memory as on the device.
    """
    trials = [trial for trial in report.drawn if sum(stack.parts(trial).values()) > 0]
    if not trials:
        return None
    parts = list(map(stack.parts, trials))
    names = list(dict.fromkeys(name for one in parts for name in one))
    colours = list(dict.fromkeys(n.removeprefix(_HOST) for n in sorted(names, key=_is_host)))
    totals = [[_total(one, host) for host, _, _ in stack.bars] for one in parts]
    unit = scales.readable([total for both in totals for total in both], stack.units)

    def draw(canvas: Canvas, index: int) -> None:
        for host, place, alpha in stack.bars:
            start = 0.0
            y = index + place
            for number, name in enumerate(colours):
                part = parts[index].get(f"{_HOST}{name}" if host else name, 0.0) / unit.size
                if part > 0:
                    canvas.axes.barh(
                        y, part, left=start, height=0.24, color=style.LIGHT[style.series(number)],
                        alpha=alpha, edgecolor=style.LIGHT["card"], linewidth=1,
                    )  # fmt: skip
                    start += part
            repeats = {_total(stack.of_repeat(record), host) for record in trials[index].ok} - {0.0}
            if len(repeats) > 1:
                ends = [min(repeats) / unit.size, max(repeats) / unit.size]
                canvas.axes.plot(ends, [y, y], color=style.LIGHT["ink"], linewidth=1.5)

    figures = [
        stack.form(first) + "".join(f" + {stack.form(host)} host" for host in others if host)
        for first, *others in totals
    ]
    firsts = [first for first, *_ in totals]
    counts = plural(len(trials), "configuration"), stack.form(min(firsts)), stack.form(max(firsts))
    picture = _chart_of_rows(
        stack.name, stack.title, stack.description.format(*counts),
        list(zip(trials, figures, strict=True)), draw, unit.name, _about(report, trials), height=stack.height,
        legend=tuple((style.series(index), name) for index, name in enumerate(colours)),
        finish=lambda canvas: scales.limit_line(canvas, limit, unit),
    )  # fmt: skip

    def part(name: str, trial: ConfigSummary) -> float | None:
        return stack.parts(trial).get(name)

    columns: list[Column[ConfigSummary]] = [
        Column(name, partial(part, name), stack.form, printable(name)) for name in names
    ]
    table = DataTable([CONFIGURATION, *columns], trials, stack.caption)
    return Section(picture, report.drawn_note, table)


def _is_host(name: str) -> bool:
    return name.startswith(_HOST)


def _total(parts: Parts, host: bool) -> float:
    return sum(value for name, value in parts.items() if _is_host(name) == host)


def _about(report: Report, trials: Sequence[ConfigSummary]) -> Callable[[int], str]:
    return lambda index: hover_text(trials[index], report.objective)


def _chart_of_rows(
    name: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    draw: Callable[[Canvas, int], None],
    unit: str,
    hover: Callable[[int], str],
    *,
    height: int = _ROW,
    legend: Legend = (),
    finish: Callable[[Canvas], None] = lambda _: None,
) -> Picture:
    """Return a chart of rows; draw, hover: draws the row of an index, and returns what is shown on hover."""

    def paint(canvas: Canvas) -> None:
        scales.rows(canvas, [(*_names(row), figure) for row, figure in rows])
        for index in range(len(rows)):
            draw(canvas, index)
            canvas.hover(scales.hover_area(canvas.axes, index), hover(index))
        scales.below(canvas, unit, len(rows))
        finish(canvas)

    return Picture(name, title, description, height * len(rows) + _AXIS, paint, legend)


def _names(row: ConfigSummary | str) -> tuple[str, str]:
    return (row, row) if isinstance(row, str) else (label(row), short_label(row))
