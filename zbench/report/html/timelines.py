"""Charts over time: a configuration's metric over all runs, and the memory of one traced step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from zbench.analysis.history import Series
from zbench.report.exports import texts
from zbench.report.html import axes as scales
from zbench.report.html import style
from zbench.report.html.drawing import Canvas, Picture
from zbench.report.text import commit_text, plural, started_text
from zbench.spec.metrics import METRICS
from zbench.units import format_bytes

MOST_VISITS, _MOST_NARROW = 200, 60
"""Runs that a trend draws on wide and on narrow screens."""

_TREND_HEIGHT = 240
_MEMORY_HEIGHT = 480
_MIB = 1 << 20


def trend(series: Series, metric: str, pages: Mapping[str, str]) -> Picture:
    """Return the chart of a metric over runs: a dot for each run, its repeats, levels and changes of level.

    pages: run id -> the address that its dot leads to. The newest 200 runs are drawn, 60 on narrow screens.
    """
    form = METRICS[metric].format

    def paint(canvas: Canvas) -> None:
        axes = canvas.axes
        count = len(series.visits)
        first = max(0, count - (_MOST_NARROW if canvas.narrow else MOST_VISITS))
        shown = series.visits[first:]
        places = range(first, count)
        spans = [(x, end) for x, v in zip(places, shown, strict=True) for end in (v.low, v.high, math.nan)]
        axes.plot(*zip(*spans, strict=True), color=style.LIGHT["none"], linewidth=1.5, solid_capstyle="butt")
        for start, stop, middle in series.levels():
            if stop > first:
                across = [max(start, first) - 0.4, stop - 0.6]
                axes.plot(across, [middle] * 2, color=style.LIGHT["s1"], linewidth=3)
        dots = axes.scatter(places, [visit.value for visit in shown], 30, style.LIGHT["ink"], zorder=3)
        texts_of = [f"{visit.run_id} {commit_text(visit.commit)}: {form(visit.value)}" for visit in shown]
        canvas.link(dots, [(pages[v.run_id], text) for v, text in zip(shown, texts_of, strict=True)])
        free, room = -1.0, 0.3 if canvas.narrow else 0.25
        for change in series.changes:
            x = (change.index - 0.5 - first) / max(1, count - 1 - first)
            if x < 0:
                continue
            colour = style.LIGHT["bad" if series.is_worse(change, metric) else "good"]
            axes.axvline(change.index - 0.5, color=colour, linewidth=1.5, linestyle="--")
            side, begin = ("right", x - room) if x > 0.6 else ("left", x)
            if begin > free:  # the table names the others, too
                name = (
                    f" {texts.percent(change.change)} {'' if canvas.narrow else commit_text(change.commit)}"
                )
                axes.text(change.index - 0.5, 1.02, name, transform=axes.get_xaxis_transform(),
                          color=colour, ha=side)  # fmt: skip
                free = begin + room
        scales.runs(canvas, form, [started_text(visit.started)[:10] for visit in (shown[0], shown[-1])])

    counts = f"{plural(len(series.visits), 'run')}; the level changed {plural(len(series.changes), 'time')}"
    title = METRICS[metric].description.removesuffix(".")
    return Picture(f"trend-{metric}", title, f"{counts}.", _TREND_HEIGHT, paint)


def memory_timeline(document: dict[str, Any], trial_id: str) -> Picture:
    """Return one step's memory, of the device above and the host below, stacked by category, with the limit.

    document: what the worker wrote as `*.memory.json`.
    """
    samples = document["samples"]
    limit = document.get("limit_bytes")
    series = {kind: stacked(samples, kind) for kind in ("device", "host")}
    names = list(dict.fromkeys(name for _, stacks in series.values() for name in stacks))
    roles = {name: style.series(index) for index, name in enumerate(names)}

    def paint(canvas: Canvas) -> None:
        canvas.axes.axis("off")
        left, bottom, width, height = canvas.axes.get_position().bounds
        for place, (kind, (times, stacks)) in enumerate(series.items()):
            start = bottom + height * (0.58 - 0.48 * place)
            box = (left + 0.08 * width, start, 0.92 * width, 0.38 * height)
            axes = canvas.figure.add_axes(box, facecolor="none")
            if stacks:
                colours = [style.LIGHT[roles[name]] for name in stacks]
                axes.stackplot(times, list(stacks.values()), step="post", colors=colours)
            if kind == "device" and limit:
                axes.axhline(limit / _MIB, color=style.LIGHT["bad"], linestyle="--")
                text = f"limit {format_bytes(limit)}"
                axes.annotate(text, (0, limit / _MIB), va="bottom", color=style.LIGHT["bad"])
            axes.set_title(f"{kind} memory (MiB)", size="medium", loc="left", color=style.LIGHT["muted"])
            axes.set_ylim(bottom=0)
            scales.frame(axes, ("y",))
        axes.set_xlabel("time in the step (ms)", color=style.LIGHT["muted"])

    title = f"trial {trial_id}: memory in one step, rank 0"
    description = f"{plural(len(samples), 'sample')} of device memory above and host memory below."
    legend = [(roles[name], name) for name in names]
    return Picture("memory-timeline", title, description, _MEMORY_HEIGHT, paint, legend)


def stacked(samples: Sequence[dict[str, Any]], kind: str) -> tuple[list[float], dict[str, list[float]]]:
    """Return the samples' times in milliseconds and, by category, MiB at each; kind: `device` or `host`."""
    names = dict.fromkeys(name for sample in samples for name in sample[kind])
    stacks = {name: [sample[kind].get(name, 0) / _MIB for sample in samples] for name in names}
    return [1e3 * sample["seconds"] for sample in samples], stacks
