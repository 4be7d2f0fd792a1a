"""The history of configurations: a row each, a dot a run, a line a level, a mark where the level changed."""

from collections.abc import Sequence
from itertools import pairwise

from zbench.analysis.history import Series
from zbench.report.exports import words
from zbench.report.html.chart import Picture, Scale
from zbench.report.html.markup import Markup, join, tag
from zbench.report.labels import label, short_label
from zbench.spec.metrics import METRICS

_ROW, _TOP, _HEIGHT = 120, 28, 64
_SHORT_COMMIT = 9


def timeline(series: Sequence[Series], metric: str) -> Picture:
    """Return the picture; each row has its own scale, from its lowest value to its highest."""
    rows = [
        tag("g", *_row(one, metric), transform=f"translate(0 {index * _ROW})")
        for index, one in enumerate(series)
    ]
    changed = sum(len(one.changes) for one in series)
    runs = max((len(one.visits) for one in series), default=0)
    description = f"{len(series)} series of up to {runs} runs; their level changed {changed} times."
    return Picture("history", f"History of {metric}", description, _ROW * len(series), join(*rows))


def _row(series: Series, metric: str) -> list[Markup]:
    across = Scale(0, max(len(series.visits) - 1, 1))
    up = Scale.around(series.values, room=0.1)
    form = METRICS[metric].format
    dots = [
        tag(
            "circle",
            tag("title", f"{visit.run_id} {commit_text(visit.commit)}: {form(visit.value)}"),
            cx=across.percent(index),
            cy=_y(up, visit.value),
            r=3,
            class_="dot",
        )
        for index, visit in enumerate(series.visits)
    ]
    links = [
        _line(across, up, (i, first), (i + 1, second), "grid")
        for i, (first, second) in enumerate(pairwise(series.values))
    ]
    levels = [
        _line(across, up, (start, middle), (stop - 1, middle), "median")
        for start, stop, middle in series.levels()
    ]
    return [*_heading(series, form(series.values[-1])), *links, *levels, *dots, *_changes(series, across)]


def _heading(series: Series, latest: str) -> list[Markup]:
    return [
        tag("text", label(series.trial), x=0, y=13, class_="ink full"),
        tag("text", short_label(series.trial), x=0, y=13, class_="ink short"),
        tag("text", f"now {latest}", x="100%", y=13, text_anchor="end"),
    ]


def _changes(series: Series, across: Scale) -> list[Markup]:
    marks = []
    for change in series.changes:
        at = change.index - 0.5
        x, late = across.percent(at), across.share(at) > 0.7
        told = f"{words.percent(change.change)} {commit_text(change.commit)}".strip()
        marks += [
            tag("line", x1=x, x2=x, y1=_TOP - 4, y2=_TOP + _HEIGHT + 4, class_="margin"),
            tag("text", told, x=x, y=_TOP + _HEIGHT + 16, text_anchor="end" if late else "start"),
        ]
    return marks


def _line(across: Scale, up: Scale, start: tuple[int, float], end: tuple[int, float], kind: str) -> Markup:
    (i, first), (j, second) = start, end
    return tag(
        "line",
        x1=across.percent(i),
        x2=across.percent(j),
        y1=_y(up, first),
        y2=_y(up, second),
        class_=kind,
    )


def _y(up: Scale, value: float) -> float:
    return _TOP + _HEIGHT * (1 - up.share(value))


def commit_text(commit: str | None) -> str:
    """Return a commit as people write it; `+` says that the tree was changed."""
    if commit is None:
        return ""
    bare = commit.removesuffix("+changes")
    return bare[:_SHORT_COMMIT] + ("+" if bare != commit else "")
