"""The history of configurations: a row each, a dot per run, a line per level, a mark per change of level."""

from collections.abc import Sequence

from zbench.analysis.history import Series
from zbench.report.exports import texts
from zbench.report.html import style
from zbench.report.html.drawing import Canvas, Picture
from zbench.report.labels import label, short_label
from zbench.report.printable import printable
from zbench.report.text import plural
from zbench.spec.metrics import METRICS

_ROW = 120
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
    said = "its level" if len(series) == 1 else "their levels"
    counts = f"{plural(len(series), 'configuration')} over {plural(runs, 'run')}"
    description = f"{counts}; {said} changed {plural(changed, 'time')}."
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
        told = f"{texts.percent(change.change)} {commit_text(change.commit)}".strip()
        side = "right" if x > 0.6 else "left"
        axes.text(x, bottom + 0.1, told, color=style.LIGHT["muted"], ha=side, va="center")


def commit_text(commit: str | None) -> str:
    """Return a commit's short hash; `+` says that the tree was changed."""
    if commit is None:
        return ""
    bare = printable(commit.removesuffix("+changes"))
    return bare[:_SHORT_COMMIT] + ("+" if commit.endswith("+changes") else "")
