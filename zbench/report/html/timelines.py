"""Pictures over time: a configuration's figure from run to run, and the memory of one traced step."""

from collections.abc import Sequence
from typing import Any

from zbench.analysis.history import Series
from zbench.report.exports import texts
from zbench.report.html import axes as scales
from zbench.report.html import style
from zbench.report.html.drawing import Canvas, Picture
from zbench.report.text import label, plural, printable, short_label
from zbench.spec.metrics import METRICS
from zbench.units import format_bytes

_ROW = 120
_MEMORY_HEIGHT = 480
_MIB = 1 << 20
_TOP, _HEIGHT = 0.27, 0.5  # shares of a row
_SHORT_COMMIT = 9


def timeline(series: Sequence[Series], metric: str) -> Picture:
    """Return the picture of one series or more; each row's scale is from its lowest value to its highest."""

    def paint(canvas: Canvas) -> None:
        for index, one in enumerate(series):
            _row(canvas, index, one, metric)
        canvas.axes.set_xlim(-0.02, 1.02)
        canvas.axes.set_ylim(len(series), 0)
        canvas.axes.axis("off")

    changed = sum(len(one.changes) for one in series)
    runs = max(len(one.visits) for one in series)
    levels = "its level" if len(series) == 1 else "their levels"
    counts = f"{plural(len(series), 'configuration')} over {plural(runs, 'run')}"
    description = f"{counts}; {levels} changed {plural(changed, 'time')}."
    return Picture("history", f"History of {metric}", description, _ROW * len(series), paint)


def _row(canvas: Canvas, index: int, series: Series, metric: str) -> None:
    axes, form = canvas.axes, METRICS[metric].format
    low, high = min(series.values), max(series.values)
    last = max(len(series.visits) - 1, 1)

    def height(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return index + _TOP + _HEIGHT * (1 - share)

    name = short_label(series.trial) if canvas.narrow else label(series.trial)
    axes.text(0, index + 0.12, name, color=style.LIGHT["ink"], va="center")
    now = f"now {form(series.values[-1])}"
    axes.text(1, index + 0.12, now, color=style.LIGHT["muted"], va="center", ha="right")
    across = [place / last for place in range(len(series.visits))]
    axes.plot(across, [height(v) for v in series.values], color=style.LIGHT["line"], linewidth=1)
    for start, stop, middle in series.levels():
        ends = [start / last, (stop - 1) / last]
        axes.plot(ends, [height(middle)] * 2, color=style.LIGHT["s1"], linewidth=3)
    for x, visit in zip(across, series.visits, strict=True):
        (dot,) = axes.plot(x, height(visit.value), "o", markersize=6, color=style.LIGHT["ink"], alpha=0.6)
        canvas.hover(dot, f"{printable(visit.run_id)} {commit_text(visit.commit)}: {form(visit.value)}")
    for change in series.changes:
        x = (change.index - 0.5) / last
        top, bottom = index + _TOP - 0.03, index + _TOP + _HEIGHT + 0.03
        axes.plot([x, x], [top, bottom], color=style.LIGHT["bad"], linewidth=1.5, linestyle="--")
        change_text = f"{texts.percent(change.change)} {commit_text(change.commit)}".strip()
        side = "right" if x > 0.6 else "left"
        axes.text(x, bottom + 0.1, change_text, color=style.LIGHT["muted"], ha=side, va="center")


def commit_text(commit: str | None) -> str:
    """Return a commit's short hash; `+` says that the tree was changed."""
    if commit is None:
        return ""
    bare = printable(commit.removesuffix("+changes"))
    return bare[:_SHORT_COMMIT] + ("+" if commit.endswith("+changes") else "")


def memory_timeline(document: dict[str, Any], trial_id: str) -> Picture:
    """Return one step's memory, of the device above and the host below, stacked by category, with the limit.

    document: what the worker wrote as `*.memory.json`.
    """
    samples, limit = document["samples"], document.get("limit_bytes")
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
